"""torch's own checks of every op, and equality of real, fake and compiled outputs."""

from __future__ import annotations

import itertools

import pytest
import torch
from cases import DTYPES, LAYOUTS, QUANTIZERS, cpu_ops
from torch._subclasses import FakeTensorMode
from torch.library import opcheck

from mxfp8_ops import reference
from mxfp8_ops.ops import OPERATIONS

# test_schema compares arguments before and after with allclose, which has no FP8 kernel; for FP8
# arguments test_fp8_arguments_are_not_written does its work.
WITHOUT_SCHEMA = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")

INPUTS = {
    "contiguous": lambda: torch.randn(32, 64),
    "transposed": lambda: torch.randn(64, 32).t(),
    "dense permuted": lambda: torch.randn(64, 32, 2).permute(2, 1, 0),
    "sliced": lambda: torch.randn(32, 128)[:, 32:96],
    "no rows": lambda: torch.randn(0, 64),
}


def quantize_calls():
    for operation in QUANTIZERS:
        for backend in cpu_ops(operation):
            yield operation, backend


@pytest.mark.parametrize(("operation", "backend"), list(quantize_calls()), ids=str)
@pytest.mark.parametrize("requires_grad", [False, True], ids=["no grad", "grad"])
def test_quantizers(operation, backend, requires_grad):
    combinations = itertools.cycle(itertools.product(DTYPES, LAYOUTS))
    for make in INPUTS.values():
        for _ in range(2):
            dtype, layout = next(combinations)
            x = make().to(dtype).requires_grad_(requires_grad)
            opcheck(OPERATIONS[operation].op(backend), (x,), {"scale_layout": layout})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dequantize_and_layout_ops(layout):
    data, scale = reference.quantize(torch.randn(2, 33, 64), scale_layout=layout)
    linear = reference.quantize(torch.randn(2, 33, 64))[1]
    calls = {
        "dequantize": ((data, scale), {"scale_layout": layout}),
        "swizzle_scale": ((linear, layout), {}),
        "unswizzle_scale": ((scale, 33, 2, layout), {}),
    }
    for operation, (args, kwargs) in calls.items():
        for backend in cpu_ops(operation):
            op = OPERATIONS[operation].op(backend)
            opcheck(op, args, kwargs, test_utils=WITHOUT_SCHEMA)
            transposed = tuple(
                a.mT.contiguous().mT if isinstance(a, torch.Tensor) else a for a in args
            )
            opcheck(op, transposed, kwargs, test_utils=WITHOUT_SCHEMA)


def test_fp8_arguments_are_not_written():
    data, scale = reference.quantize(torch.randn(5, 64))
    before = [t.view(torch.uint8).clone() for t in (data, scale)]
    for backend in cpu_ops("dequantize"):
        OPERATIONS["dequantize"].op(backend)(data, scale)
        OPERATIONS["swizzle_scale"].op(None)(scale, "swizzled_8x4")
        assert torch.equal(data.view(torch.uint8), before[0])
        assert torch.equal(scale.view(torch.uint8), before[1])


def calls(device: str):
    """(operation, positional arguments, keyword arguments), every keyword with each kind of value."""
    for dtype, element, layout, alignment in itertools.product(
        DTYPES, (None, torch.float8_e5m2), LAYOUTS, (None, 96)
    ):
        x = torch.randn(3, 32, 64, device=device).to(dtype)
        options = {"dtype": element, "scale_layout": layout, "alignment": alignment}
        for operation in QUANTIZERS:
            yield operation, (x,), options
        yield "quantize", (x.select(0, 0).select(0, 0),), options
        yield "quantize_both", (x,), {**options, "scale_layout_t": "swizzled_8x4"}
    for layout, output in itertools.product(LAYOUTS, (None, torch.float32)):
        x = torch.randn(3, 40, 64, device=device)
        data, scale = torch.ops.mxfp8.quantize(x, scale_layout=layout)
        yield "dequantize", (data, scale), {"dtype": output, "scale_layout": layout}
        yield "swizzle_scale", (torch.ops.mxfp8.quantize(x)[1], layout), {}
        yield "unswizzle_scale", (scale, 40, 2, layout), {}


def describe(result):
    outputs = (result,) if isinstance(result, torch.Tensor) else result
    return [(o.shape, o.dtype, o.stride(), o.layout) for o in outputs]


def test_fake_outputs_look_like_real_ones():
    real = [
        describe(OPERATIONS[name].op(b)(*args, **kwargs))
        for name, args, kwargs in calls("cpu")
        for b in cpu_ops(name)
    ]
    with FakeTensorMode():
        fake = [
            describe(OPERATIONS[name].op(b)(*args, **kwargs))
            for name, args, kwargs in calls("cpu")
            for b in cpu_ops(name)
        ]
    assert real == fake


@pytest.mark.parametrize("device", ["cuda", "xpu", "meta", "cpu"])
def test_fakes_of_absent_devices(device):
    """Tracing and export work on a host that has none of the hardware."""
    mode = torch.no_grad() if device == "meta" else FakeTensorMode()
    with mode:
        for name, args, kwargs in calls(device):
            for backend in (None, *OPERATIONS[name].backends):
                result = OPERATIONS[name].op(backend)(*args, **kwargs)
                outputs = (result,) if isinstance(result, torch.Tensor) else result
                for output in outputs:
                    assert output.device.type == device
                    assert output.is_contiguous()
    assert not torch.cuda.is_initialized()


def test_compiled_outputs_look_like_real_ones():
    for name, args, kwargs in list(calls("cpu"))[::7]:
        op = OPERATIONS[name].op()
        compiled = torch.compile(lambda *a, op=op, kw=kwargs: op(*a, **kw), fullgraph=True)
        assert describe(compiled(*args)) == describe(op(*args, **kwargs)), name
        torch._dynamo.reset()


def test_outputs_are_detached():
    x = torch.randn(32, 64, requires_grad=True)
    for operation in QUANTIZERS:
        for backend in cpu_ops(operation):
            assert not any(t.requires_grad for t in OPERATIONS[operation].op(backend)(x))


@pytest.mark.parametrize("backend", cpu_ops("quantize"))
def test_results_are_no_views(backend):
    """Autograd would refuse to change one in place that was made without gradients."""
    with torch.no_grad():
        for shape in ((64,), (4, 64), (2, 3, 64)):
            for layout in LAYOUTS:
                pair = OPERATIONS["quantize"].op(backend)(torch.randn(shape), scale_layout=layout)
                back = OPERATIONS["dequantize"].op(backend)(*pair, scale_layout=layout)
                assert not any(t._is_view() for t in (*pair, back))
    back.mul_(torch.ones(back.shape, requires_grad=True))
    assert back.requires_grad
