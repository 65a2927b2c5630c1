"""The XPU backend on a real Intel GPU, byte for byte; skipped where torch finds none."""

from __future__ import annotations

import pytest
import torch

from mxfp8_ops import dispatch, formats, reference, testing
from mxfp8_ops.ops import OPERATIONS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.xpu.is_available(), reason="torch finds no Intel GPU"),
]


@pytest.fixture(params=["xpu", "triton"])
def backend(request) -> str:
    reason = dispatch.unavailable_reason(
        dispatch.BACKENDS[request.param], torch.device("xpu", torch.xpu.current_device())
    )
    if reason is not None and request.param == "xpu":
        pytest.fail(f"the native XPU backend is not available: {reason}")
    if reason is not None:
        pytest.skip(reason)
    return request.param


@pytest.mark.parametrize("mode", formats.SCALING_MODES)
@pytest.mark.parametrize("element", formats.ELEMENT_FORMATS)
@pytest.mark.parametrize("dtype", formats.INPUT_DTYPES)
def test_every_block_of_the_numerics_set(backend, dtype, element, mode):
    x = testing.adversarial_blocks(dtype, random=20000)
    if dtype != torch.float32:
        x = torch.cat([x, testing.all_patterns_as_maxima(dtype)])
    options = {"dtype": element, "scaling_mode": mode}
    actual = OPERATIONS["quantize"].op(backend)(x.to("xpu"), **options)
    testing.assert_same_bytes(actual, reference.quantize(x, **options))


@pytest.mark.parametrize("layout", formats.SCALE_LAYOUTS)
@pytest.mark.parametrize("element", formats.ELEMENT_FORMATS)
@pytest.mark.parametrize("dtype", formats.OUTPUT_DTYPES)
def test_dequantize_of_every_code_under_every_scale(backend, dtype, element, layout):
    data = torch.arange(256, dtype=torch.uint8).repeat(256, 1).view(element)
    linear = torch.arange(256, dtype=torch.uint8).unsqueeze(1).repeat(1, 8)
    scale = reference.swizzle_scale(linear.view(formats.SCALE_DTYPE), layout)
    options = {"dtype": dtype, "scale_layout": layout}
    actual = OPERATIONS["dequantize"].op(backend)(data.to("xpu"), scale.to("xpu"), **options)
    testing.assert_same_bytes(actual, reference.dequantize(data, scale, **options))


@pytest.mark.parametrize("layout", formats.SCALE_LAYOUTS)
@pytest.mark.parametrize("alignment", [32, 128])
def test_layouts_strides_and_padding(backend, layout, alignment):
    base = torch.randn(3, 131, 97, generator=torch.Generator().manual_seed(0)).bfloat16()
    options = {"scale_layout": layout, "alignment": alignment}
    for x, on_device in (
        (base, base.to("xpu")),
        (base.mT, base.to("xpu").mT),
        (base[:, ::2, 1:70], base.to("xpu")[:, ::2, 1:70]),
    ):
        actual = OPERATIONS["quantize"].op(backend)(on_device, **options)
        testing.assert_same_bytes(actual, reference.quantize(x, **options))


def test_the_current_stream_orders_the_kernels():
    x = torch.zeros(4096, 4096, device="xpu", dtype=torch.bfloat16)
    stream = torch.xpu.Stream()
    stream.wait_stream(torch.xpu.current_stream())
    with torch.xpu.stream(stream):
        for _ in range(20):
            x.add_(1)  # late work that the kernel must wait for
        outputs = torch.ops.mxfp8.quantize_xpu(x)
    stream.synchronize()
    expected = reference.quantize(torch.full((4096, 4096), 20.0, dtype=torch.bfloat16))
    testing.assert_same_bytes(outputs, expected)


def test_the_dispatcher_chooses_the_native_backend():
    x = torch.randn(64, 256)
    device = torch.device("xpu", torch.xpu.current_device())
    assert dispatch.routes("quantize", device)[0].name == "xpu"
    testing.assert_same_bytes(torch.ops.mxfp8.quantize(x.to("xpu")), reference.quantize(x))
