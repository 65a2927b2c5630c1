"""torch.export, saving and loading, and AOTInductor packages."""

from __future__ import annotations

import io

import pytest
import torch

from mxfp8_ops import testing


class RoundTrip(torch.nn.Module):
    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout

    def forward(self, x):
        data, scale = torch.ops.mxfp8.quantize(x * 2, scale_layout=self.layout, alignment=64)
        return data, scale, torch.ops.mxfp8.dequantize(data, scale, scale_layout=self.layout)


def export(layout: str, strict: bool) -> torch.export.ExportedProgram:
    rows = torch.export.Dim("rows", min=2, max=4096)
    x = torch.randn(130, 96)
    return torch.export.export(RoundTrip(layout), (x,), dynamic_shapes=({0: rows},), strict=strict)


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
@pytest.mark.parametrize("layout", ["linear", "swizzled_32_4_4"])
def test_export_save_load(layout, strict):
    program = export(layout, strict)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    for rows in (2, 5, 130, 300):
        x = torch.randn(rows, 96)
        testing.assert_same_bytes(loaded(x), RoundTrip(layout)(x), f"{rows} rows")


def test_aotinductor_package(tmp_path):
    path = torch._inductor.aoti_compile_and_package(
        export("swizzled_8x4", strict=False), package_path=str(tmp_path / "model.pt2")
    )
    model = torch._inductor.aoti_load_package(path)
    for rows in (2, 7, 130):
        x = torch.randn(rows, 96)
        testing.assert_same_bytes(model(x), RoundTrip("swizzled_8x4")(x), f"{rows} rows")
