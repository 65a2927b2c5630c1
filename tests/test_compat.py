"""The drop-ins: signatures of the originals, their shapes and dtypes, bytes, and how they are put in place.

What is expected is written down here from the originals' documented conventions, apart from the
package: ``place`` is the offset formula of the swizzled layouts.
"""

from __future__ import annotations

import inspect
import sys
import types

import pytest
import torch
from cases import check_python
from flashinfer_emulator import emulate

from mxfp8_ops import reference
from mxfp8_ops.compat import flashinfer, sglang, vllm
from mxfp8_ops.testing import assert_same_bytes

E4M3, E8M0, U8 = torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.uint8

SIGNATURES = {
    vllm.mxfp8_e4m3_quantize: "x, is_sf_swizzled_layout=False, alignment=0",
    vllm.dequant_mxfp8_to_bf16: "x, scales",
    vllm.swizzle_mxfp8_scale: "sf, M, K",
    vllm.xpu_mxfp8_quantize: "x, dtype=None",
    vllm.flashinfer_mxfp8_quantize_8x4: "a",
    sglang.flashinfer_mxfp8_quantize: (
        "input, is_sf_swizzled_layout=True, alignment=32, backend='cute-dsl'"
    ),
    sglang.mxfp8_group_quantize: "x",
    sglang.mxfp8_quantize_swizzled: "x",
    flashinfer.mxfp8_quantize: (
        "input, is_sf_swizzled_layout=True, alignment=32, enable_pdl=None, backend='cuda', "
        "sf_swizzle_layout=None"
    ),
    flashinfer.mxfp8_dequantize_host: (
        "input, scale_tensor, is_sf_swizzled_layout=True, sf_swizzle_layout=None"
    ),
    flashinfer.block_scale_interleave: "unswizzled_sf",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda f: f.__name__)
def test_signatures(function):
    parameters = inspect.signature(function).parameters.values()
    bare = inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in parameters])
    assert str(bare) == f"({SIGNATURES[function]})"


def test_constants():
    assert vllm.MXFP8_VALUE_DTYPE is torch.float8_e4m3fn
    assert vllm.MXFP8_SCALE_DTYPE is torch.uint8
    assert vllm.MXFP8_BLOCK_SIZE == 32
    layouts = {layout.name: layout.value for layout in flashinfer.SfLayout}
    assert layouts == {"layout_128x4": 0, "layout_8x4": 1, "layout_linear": 2}


def up(n, multiple):
    return -(-n // multiple) * multiple


def place(rows, columns, tile=128):
    """Offsets of all scales of one matrix, and the size of what holds them."""
    r, c = torch.arange(rows)[:, None], torch.arange(columns)[None, :]
    within = r % 32 * 16 + r % 128 // 32 * 4 if tile == 128 else r % 8 * 4
    offsets = (r // tile * (up(columns, 4) // 4) + c // 4) * tile * 4 + within + c % 4
    return offsets, up(rows, tile) * up(columns, 4)


def swizzled(scale, tile=128):
    """``[rows, columns]`` bytes in tiles, flat, padded with zeros."""
    offsets, size = place(*scale.shape, tile)
    out = torch.zeros(size, dtype=U8)
    out[offsets.flatten()] = scale.view(U8).flatten()
    return out


def described(x, layout, alignment=32):
    """Data, and scale bytes of each matrix of a batch in ``layout``, by the specification."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % alignment))
    data, scale = reference.quantize(padded)
    scale = scale.view(U8)
    if layout == "linear":
        return data, scale
    tile = {"128x4": 128, "8x4": 8}[layout]
    matrices = scale[None, None] if x.dim() == 1 else scale[None].flatten(0, -3)
    return data, torch.cat([torch.zeros(0, dtype=U8), *(swizzled(m, tile) for m in matrices)])


def folded(x, layout, alignment=32):
    data, scale = described(x.flatten(0, -2), layout, alignment)
    return data, scale.flatten()


def sample(*shape, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return (torch.randn(shape, generator=generator) * 3).to(dtype)


MATRICES = [(1, 32), (5, 96), (130, 256), (0, 64), (4, 0)]
BATCHES = [(3, 5, 96), (2, 130, 64), (2, 0, 64), (0, 4, 64), (2, 2, 3, 64)]


@pytest.mark.parametrize("shape", [(96,), *MATRICES, *BATCHES], ids=str)
@pytest.mark.parametrize("alignment", [0, 32, 128])
def test_vllm_quantize(shape, alignment):
    x = sample(*shape)
    pad = alignment or 32
    assert_same_bytes(vllm.mxfp8_e4m3_quantize(x, False, alignment), described(x, "linear", pad))
    data, scale = vllm.mxfp8_e4m3_quantize(x, is_sf_swizzled_layout=True, alignment=alignment)
    assert_same_bytes((data, scale), described(x, "128x4", pad))
    assert (data.dim(), scale.dim(), scale.dtype) == (x.dim(), 1, U8)


@pytest.mark.parametrize("shape", [*MATRICES, *BATCHES], ids=str)
@pytest.mark.parametrize("alignment", [32, 128])
def test_flashinfer_and_sglang_quantize(shape, alignment):
    x = sample(*shape)
    for number, layout in enumerate(("128x4", "8x4", "linear")):
        data, scale = folded(x, layout, alignment)
        batch = data.view(*shape[:-1], data.shape[-1])
        name = flashinfer.SfLayout(number)
        for form in (name, number, types.SimpleNamespace(value=number)):
            given = flashinfer.mxfp8_quantize(x, False, alignment, sf_swizzle_layout=form)
            assert_same_bytes(given, (batch, scale))
        for backend, expected in (("cuda", batch), ("auto", batch), ("cute-dsl", data)):
            given = flashinfer.mxfp8_quantize(x, True, alignment, None, backend, name)
            assert_same_bytes(given, (expected, scale))
        if layout != "8x4":
            flag = layout == "128x4"
            given = flashinfer.mxfp8_quantize(x, flag, alignment, enable_pdl=True)
            assert_same_bytes(given, (batch, scale))
            assert_same_bytes(
                sglang.flashinfer_mxfp8_quantize(x, flag, alignment, "cute-dsl"), (data, scale)
            )


@pytest.mark.parametrize("layout", flashinfer.SfLayout)
@pytest.mark.parametrize("shape", [(5, 96), (130, 256), (3, 5, 96)], ids=str)
def test_flashinfer_bytes_of_its_emulated_kernel(layout, shape):
    x = sample(*shape)
    expected = emulate(x, layout.name, 64, (0, 7, 2))
    given = flashinfer.mxfp8_quantize(x, True, 64, backend="cute-dsl", sf_swizzle_layout=layout)
    assert_same_bytes(given, expected)


@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_functions_of_matrices(shape):
    x = sample(*shape, dtype=torch.float32).mT.contiguous().mT  # any strides
    assert_same_bytes(sglang.mxfp8_group_quantize(x), described(x, "linear"))
    assert_same_bytes(sglang.mxfp8_quantize_swizzled(x), described(x, "128x4"))
    assert_same_bytes(vllm.flashinfer_mxfp8_quantize_8x4(x), described(x, "8x4"))
    for dtype in (None, E4M3, torch.float8_e5m2):
        data, scale = vllm.xpu_mxfp8_quantize(x, dtype)
        assert scale.dtype == E8M0
        assert_same_bytes((data, scale), reference.quantize(x, dtype=dtype))


@pytest.mark.parametrize("dtype", [U8, E8M0])
@pytest.mark.parametrize("shape", [(5, 3), (130, 8), (0, 2)], ids=str)
def test_swizzling_keeps_dtype_and_pads_with_zeros(shape, dtype):
    scale = torch.randint(1, 256, shape, dtype=U8).view(dtype)
    expected = swizzled(scale).view(dtype)
    assert_same_bytes(vllm.swizzle_mxfp8_scale(scale, shape[0], shape[1] * 32), expected)
    assert_same_bytes(flashinfer.block_scale_interleave(scale), expected)
    batch = torch.stack([scale.view(U8), scale.view(U8)]).view(dtype)
    twice = torch.cat([expected.view(U8), expected.view(U8)]).view(dtype)
    assert_same_bytes(flashinfer.block_scale_interleave(batch), twice)


def codes_and_scales():
    data = torch.arange(256, dtype=U8).repeat(256).view(256, 256).view(E4M3)
    scale = torch.arange(256, dtype=U8).unsqueeze(1).repeat(1, 8)
    return data, scale


def test_vllm_dequantize_takes_bytes_of_either_dtype():
    data, scale = codes_and_scales()
    exponents = (scale.double() - 127).repeat_interleave(32, 1)
    expected = (data.double() * torch.exp2(exponents)).bfloat16()
    given = vllm.dequant_mxfp8_to_bf16(data, scale)
    assert given.dtype == torch.bfloat16
    assert torch.equal(given[:255].nan_to_num(1.5), expected[:255].nan_to_num(1.5))
    assert given[255].isnan().all(), "byte 255 is NaN, not infinity"
    assert_same_bytes(vllm.dequant_mxfp8_to_bf16(data, scale.view(E8M0)), given)
    batch = vllm.dequant_mxfp8_to_bf16(data.view(4, 64, 256), scale.view(4, 64, 8))
    assert_same_bytes(batch.view(256, 256), given)
    assert vllm.dequant_mxfp8_to_bf16(data[0], scale[0]).shape == (256,)
    assert vllm.dequant_mxfp8_to_bf16(data[:0], scale[:0]).shape == (0, 256)


@pytest.mark.parametrize("layout", flashinfer.SfLayout)
@pytest.mark.parametrize("shape", [*MATRICES, *BATCHES], ids=str)
def test_flashinfer_dequantize_reads_what_quantize_wrote(layout, shape):
    x = sample(*shape)
    data, scale = flashinfer.mxfp8_quantize(x, sf_swizzle_layout=layout)
    expected = reference.dequantize(*reference.quantize(x), dtype=torch.float32)
    for d in (data, data.view(U8)):
        for s in (scale, scale.view(E8M0)):
            given = flashinfer.mxfp8_dequantize_host(d, s, sf_swizzle_layout=layout)
            assert_same_bytes(given, expected)
    if layout.name == "layout_128x4":
        assert_same_bytes(flashinfer.mxfp8_dequantize_host(data, scale), expected)


def test_a_module_of_vllm_is_patched_as_migrating_md_shows(monkeypatch):
    path = "vllm.model_executor.layers.quantization.utils.mxfp8_utils"
    parts = path.split(".")
    for length in range(1, len(parts) + 1):
        name = ".".join(parts[:length])
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        if length > 1:
            setattr(
                sys.modules[".".join(parts[: length - 1])], parts[length - 1], sys.modules[name]
            )
    mxfp8_utils = sys.modules[path]
    mxfp8_utils.mxfp8_e4m3_quantize = lambda *args: pytest.fail("the original was called")

    scope: dict[str, object] = {}
    exec(_patch_of_migrating_md(), scope)
    scope["register"]()
    from vllm.model_executor.layers.quantization.utils.mxfp8_utils import mxfp8_e4m3_quantize

    x = sample(5, 96)
    assert_same_bytes(mxfp8_e4m3_quantize(x, True), described(x, "128x4"))
    assert mxfp8_utils.dequant_mxfp8_to_bf16 is vllm.dequant_mxfp8_to_bf16


def _patch_of_migrating_md():
    from test_docs import ROOT, python_blocks

    blocks = python_blocks((ROOT / "docs/migrating.md").read_text())
    return next(b.code for b in blocks if "mxfp8_utils." in b.code)


def test_importing_imports_none_of_the_packages():
    packages = ("vllm", "sglang", "flashinfer", "triton")
    check_python(
        f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {packages!r}:
            raise ImportError(name)
import torch  # which itself looks for triton
sys.meta_path.insert(0, Refuse())
from mxfp8_ops.compat import flashinfer, sglang, vllm
vllm.mxfp8_e4m3_quantize(torch.randn(4, 64))
assert not torch.cuda.is_initialized()
assert vllm.__name__ == "mxfp8_ops.compat.vllm"
"""
    )
