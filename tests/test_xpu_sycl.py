"""The SYCL kernels on Intel's OpenCL CPU device, byte for byte; run by scripts/test_xpu.sh.

The library is compiled by the commands of setup.py, against a stand-in for the one torch library that
a CPU build lacks. A second build of the same binding has its kernels on the CPU key, so that all of it
runs, on CPU tensors.
"""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from xpu_harness import DTYPES, ELEMENTS, LAYOUTS, SYCL, Core, build_libraries

from mxfp8_ops import dispatch, formats, native, ops, reference, testing
from mxfp8_ops.backends import xpu

pytestmark = pytest.mark.skipif(
    SYCL is None,
    reason="scripts/test_xpu.sh sets MXFP8_TEST_SYCL to a SYCL runtime with a CPU device",
)


@pytest.fixture(scope="session")
def libraries(tmp_path_factory) -> dict[str, Path]:
    return build_libraries(tmp_path_factory.mktemp("xpu"))


@pytest.fixture(scope="session")
def core(libraries) -> Core:
    return Core(libraries["XPU"], libraries["stand_in"])


@pytest.fixture(scope="session")
def op(libraries):
    """``torch.ops.mxfp8``, whose quantize_xpu and dequantize_xpu run on CPU tensors."""
    torch.ops.load_library(str(libraries["CPU"]))
    return torch.ops.mxfp8


def numerics(dtype: torch.dtype) -> torch.Tensor:
    blocks = testing.adversarial_blocks(dtype, random=20000)
    if dtype != torch.float32:
        blocks = torch.cat([blocks, testing.all_patterns_as_maxima(dtype)])
    return blocks


def elements_under_every_scale(dtype: torch.dtype) -> torch.Tensor:
    """Every 16-bit pattern behind every power of two that is at least as large."""
    mantissa_bits = 7 if dtype == torch.bfloat16 else 10
    rows = []
    for exponent in range(1, 255 if dtype == torch.bfloat16 else 31):
        head = exponent << mantissa_bits
        magnitudes = torch.arange(head + 1)
        patterns = torch.cat([magnitudes, magnitudes | 0x8000])
        patterns = torch.nn.functional.pad(patterns, (0, -patterns.numel() % 31)).reshape(-1, 31)
        rows.append(torch.nn.functional.pad(patterns, (1, 0), value=head))
    return torch.cat(rows).to(torch.uint16).view(dtype)


@pytest.mark.parametrize("poison", [0x00, 0xFF])
@pytest.mark.parametrize("mode", formats.SCALING_MODES)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_block_of_the_numerics_set(core, dtype, element, mode, poison):
    x = numerics(dtype)
    expected = reference.quantize(x, dtype=element, scaling_mode=mode)
    testing.assert_same_bytes(core.quantize(x, element, mode, poison=poison), expected)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_element_under_every_scale(core, dtype, element):
    for x in elements_under_every_scale(dtype).split(1 << 16):
        expected = reference.quantize(x, dtype=element)
        testing.assert_same_bytes(core.quantize(x, element, "rceil"), expected)


@pytest.mark.parametrize("poison", [0x00, 0xFF])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("element", ELEMENTS)
def test_dequantize_of_every_code_under_every_scale(core, element, dtype, layout, poison):
    data = torch.arange(256, dtype=torch.uint8).repeat(256, 1).view(element)
    linear = torch.arange(256, dtype=torch.uint8).unsqueeze(1).repeat(1, 8)
    scale = reference.swizzle_scale(linear.view(formats.SCALE_DTYPE), layout)
    expected = reference.dequantize(data, scale, dtype=dtype, scale_layout=layout)
    testing.assert_same_bytes(core.dequantize(data, scale, dtype, layout, poison), expected)


SHAPES = [(1, 32), (5, 64), (7, 1), (3, 31), (129, 160), (2, 9, 96), (3, 130, 70), (1, 8, 4096)]


@pytest.mark.parametrize("poison", [0x00, 0xFF])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_layouts_alignments_and_guard_bytes(core, shape, layout, poison):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(shape, generator=generator)
    for dtype, element, alignment in itertools.product(DTYPES, ELEMENTS, (None, 32, 128)):
        if alignment is None and shape[-1] % 32 != 0:
            continue
        x = values.to(dtype)
        x.view(-1)[3 % x.numel() :: 97] = float("nan")
        options = {"scale_layout": layout, "alignment": alignment}
        expected = reference.quantize(x, dtype=element, scaling_mode="floor", **options)
        actual = core.quantize(x, element, "floor", layout, alignment, poison)
        testing.assert_same_bytes(actual, expected, f"{dtype} {element} {alignment}")


def strided_inputs(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    base = torch.randn(6, 40, 256, generator=torch.Generator().manual_seed(1)).to(dtype)
    return {
        "row of one dimension": base[0, 0],
        "rows apart": base[:, :, :96],
        "odd offset": base.view(-1)[1 : 1 + 4 * 96].view(4, 96),
        "odd row stride": base.view(-1)[: 4 * 97].view(4, 97)[:, :96],
        "odd batch stride": base.view(-1)[: 3 * 4099].view(3, 4099)[:, :4096].view(3, 16, 256),
        "transposed": base.mT,
        "permuted batch": base.view(2, 3, 40, 256).transpose(0, 1),
        "every second column": base[:, :, ::2],
        "expanded": base[:1].expand(3, 40, 256),
        "expanded rows": base[0, :1].expand(33, 256),
        "four dimensions, steps": base.view(2, 3, 40, 256)[:, ::2],
        "batch of one": base.view(1, 6, 1, 40, 256),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", strided_inputs(torch.float32))
def test_binding_takes_any_strides_and_offsets(op, name, dtype):
    x = strided_inputs(dtype)[name]
    for layout, alignment in itertools.product(LAYOUTS, (32, 128)):
        options = {"scale_layout": layout, "alignment": alignment}
        expected = reference.quantize(x, **options)
        actual = op.quantize_xpu(x, **options)
        testing.assert_same_bytes(actual, expected, f"{layout} {alignment}")
        back = op.dequantize_xpu(*actual, dtype=dtype, scale_layout=layout)
        wanted = reference.dequantize(*expected, dtype=dtype, scale_layout=layout)
        testing.assert_same_bytes(back, wanted, f"{layout} {alignment}")


def test_binding_dequantizes_views(op):
    data, scale = reference.quantize(torch.randn(8, 65 * 32), scale_layout="linear")
    for view, scales in (
        (data[:, 32:], scale[:, 1:]),
        (data.view(-1)[1 : 1 + 4 * 64].view(4, 64), scale[:4, :2]),
        (data[::2], scale[::2]),
    ):
        expected = reference.dequantize(view, scales)
        testing.assert_same_bytes(op.dequantize_xpu(view, scales), expected)


@pytest.mark.parametrize("shape", [(0,), (0, 32), (4, 0), (2, 0, 64)])
def test_binding_returns_empty_outputs(op, shape):
    x = torch.empty(shape)
    for layout in LAYOUTS:
        expected = ops.quantize_fake(x, scale_layout=layout)
        actual = op.quantize_xpu(x, scale_layout=layout)
        testing.assert_same_bytes(actual, expected)
        assert op.dequantize_xpu(*actual, scale_layout=layout).shape == shape


def test_binding_refuses_in_the_words_of_the_check(op):
    x, (data, scale) = torch.randn(4, 64), reference.quantize(torch.randn(4, 64))
    calls = [
        ("quantize", (x,), {"scaling_mode": "round"}),
        ("quantize", (x,), {"scale_layout": "tiled"}),
        ("quantize", (x,), {"dtype": torch.float16}),
        ("quantize", (x,), {"alignment": 48}),
        ("quantize", (x[:, :33],), {}),
        ("quantize", (x.double(),), {}),
        ("quantize", (torch.tensor(1.0),), {}),
        ("dequantize", (data, None), {}),
        ("dequantize", (None, scale), {}),
        ("dequantize", (data, scale[:3]), {}),
        ("dequantize", (data, scale.view(torch.uint8)), {}),
        ("dequantize", (data, scale), {"dtype": torch.float64}),
        ("dequantize", (x, scale), {}),
        ("dequantize", (data, scale), {"scale_layout": "swizzled_8x4"}),
    ]
    for operation, args, kwargs in calls:
        with pytest.raises(ValueError, match=r"\w") as expected:
            getattr(formats, f"check_{operation}")(*args, **kwargs)
        with pytest.raises(ValueError, match=r"\w") as actual:
            getattr(op, f"{operation}_xpu")(*args, **kwargs)
        assert str(actual.value) == str(expected.value)


def test_offsets_beyond_32_bits(op):
    far = (1 << 31) + 64
    storage = torch.empty(far + 4096, dtype=torch.bfloat16)  # only its ends are ever touched
    rows = storage.as_strided((2, 4096), (far, 1))
    rows.copy_(torch.randn(2, 4096))
    testing.assert_same_bytes(op.quantize_xpu(rows), reference.quantize(rows.contiguous()))


def test_more_blocks_than_one_turn_of_all_groups(op):
    x = torch.randn(1, 1024, 1024, dtype=torch.bfloat16)
    copies = 70  # 2.3 million blocks; the work-groups of a launch take 2.1 million at a time
    data, scale = op.quantize_xpu(x.expand(copies, -1, -1))
    one_data, one_scale = reference.quantize(x)
    expected = (one_data.view(torch.uint8), one_scale.view(torch.uint8))
    for actual, wanted in zip((data, scale), expected, strict=True):
        assert bool((actual.view(torch.uint8) == wanted).all())


def test_threads_and_contexts(core):
    x = numerics(torch.bfloat16)[:4096]
    expected = reference.quantize(x)
    queue, failures = core.new_queue(), []

    def work() -> None:
        try:
            for target in (queue, core.queue):
                actual = core.quantize(x, torch.float8_e4m3fn, "rceil", queue=target)
                testing.assert_same_bytes(actual, expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize(
    ("mode", "offset", "padded", "reason"),
    [(4, 0, 32, "enumeration"), (0, 0, 33, "multiple of 32"), (0, 1, 32, "aligned to 4 bytes")],
)
def test_launcher_refuses_bad_arguments(core, mode, offset, padded, reason):
    buffer = torch.zeros(4096, dtype=torch.uint8)
    places = map(ctypes.c_int, (0, 0, mode, 0))
    sizes = (1, 1, 32, padded, 0, 32)
    with pytest.raises(RuntimeError, match=reason):
        core.call("quantize", *places, buffer, buffer[offset:], buffer, *sizes)


def test_the_library_registers_on_the_xpu_key_and_is_chosen(libraries, monkeypatch):
    """Loaded as on a machine with an Intel GPU: probed, registered, compiled, first in order."""
    monkeypatch.setattr(torch._C, "_has_xpu", True)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(native, "library_path", lambda name: libraries["XPU"])
    for cached in (native.load_error, native.library):
        cached.cache_clear()
    for state in ("_reasons", "_routes"):
        monkeypatch.setattr(dispatch, state, {})
    device = torch.device("xpu", 0)
    try:
        assert xpu.BACKEND.unavailable_reason(device) is None
        assert dispatch.routes("quantize", device)[0].name == "xpu"
        assert dispatch.routes("dequantize", device)[0].name == "xpu"
    finally:
        for cached in (native.load_error, native.library):
            cached.cache_clear()
    for name in ("mxfp8::quantize_xpu", "mxfp8::dequantize_xpu"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "XPU")


def test_the_library_needs_torch_through_its_stable_interface_only(libraries):
    listing = subprocess.run(["nm", "-DCu", libraries["XPU"]], capture_output=True, text=True)
    symbols = [line.split(None, 1)[1] for line in listing.stdout.splitlines()]
    assert "aoti_torch_get_current_xpu_stream" in symbols
    assert [s for s in symbols if s.startswith(("at::", "c10::", "torch::", "Py"))] == []


def test_a_failed_compilation_is_a_reason(libraries, core, monkeypatch):
    class Broken:
        @staticmethod
        def mxfp8_xpu_prepare_device(index):
            return b"error: the device has no sub-groups of 32"

    monkeypatch.setattr(native, "library", lambda name: Broken)
    reason = xpu._compile_error(0)
    assert "could not compile" in reason
    assert "sub-groups of 32" in reason
