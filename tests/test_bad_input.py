"""Every wrong argument gets one sentence with both values, the same eager, fake and traced."""

from __future__ import annotations

import pytest
import torch
from cases import cpu_ops
from torch._subclasses.fake_tensor import FakeTensorMode

import mxfp8_ops
from mxfp8_ops.ops import OPERATIONS

E8 = torch.float8_e8m0fnu
F8 = torch.float8_e4m3fn
OPS = torch.ops.mxfp8


def x(*shape, dtype=torch.bfloat16):
    return torch.ones(shape, dtype=dtype)


def codes(*shape):
    return torch.zeros(shape, dtype=torch.uint8)


CASES = {
    "input dtype": (lambda: OPS.quantize(x(2, 32, dtype=torch.float64)), ["float64", "bfloat16"]),
    "element": (lambda: OPS.quantize(x(2, 32), dtype=torch.int8), ["int8", "float8_e5m2"]),
    "mode": (lambda: OPS.quantize(x(2, 32), scaling_mode="up"), ["'up'", "'rceil'"]),
    "layout": (lambda: OPS.quantize(x(2, 32), scale_layout="row"), ["'row'", "'swizzled_8x4'"]),
    "K": (lambda: OPS.quantize(x(2, 33)), ["33", "32"]),
    "alignment 48": (lambda: OPS.quantize(x(2, 33), alignment=48), ["48", "32"]),
    "alignment 0": (lambda: OPS.quantize(x(2, 32), alignment=0), ["got 0", "32"]),
    "alignment -32": (lambda: OPS.quantize(x(2, 32), alignment=-32), ["-32"]),
    "0-dim": (lambda: OPS.quantize(x()), ["0-dimensional", "1"]),
    "columnwise M": (lambda: OPS.quantize_columnwise(x(33, 32)), ["33", "32"]),
    "columnwise 1-dim": (lambda: OPS.quantize_columnwise(x(32)), ["1-dimensional", "2"]),
    "both K": (lambda: OPS.quantize_both(x(32, 31)), ["31", "32"]),
    "both layout": (
        lambda: OPS.quantize_both(x(32, 32), scale_layout_t="row"),
        ["scale_layout_t", "'row'"],
    ),
    "data dtype": (lambda: OPS.dequantize(x(2, 32), codes(2, 1).view(E8)), ["bfloat16"]),
    "scale dtype": (lambda: OPS.dequantize(codes(2, 32).view(F8), codes(2, 1)), ["uint8", "e8m0"]),
    "scale shape": (
        lambda: OPS.dequantize(codes(2, 32).view(F8), codes(3, 1).view(E8)),
        ["(2, 1)", "(3, 1)"],
    ),
    "scale layout": (
        lambda: OPS.dequantize(
            codes(2, 32).view(F8), codes(2, 1).view(E8), scale_layout="swizzled_32_4_4"
        ),
        ["(128, 4)", "(2, 1)"],
    ),
    "output dtype": (
        lambda: OPS.dequantize(codes(2, 32).view(F8), codes(2, 1).view(E8), dtype=torch.int32),
        ["int32", "bfloat16"],
    ),
    "data K": (lambda: OPS.dequantize(codes(2, 31).view(F8), codes(2, 1).view(E8)), ["31", "32"]),
    "swizzle dtype": (lambda: OPS.swizzle_scale(codes(2, 1), "linear"), ["uint8", "e8m0"]),
    "swizzle layout": (lambda: OPS.swizzle_scale(codes(2, 1).view(E8), "z"), ["'z'", "'linear'"]),
    "swizzle 0-dim": (lambda: OPS.swizzle_scale(codes().view(E8), "linear"), ["0-dimensional"]),
    "unswizzle shape": (
        lambda: OPS.unswizzle_scale(codes(128, 4).view(E8), 200, 4, "swizzled_32_4_4"),
        ["(256, 4)", "(128, 4)"],
    ),
    "unswizzle rows": (
        lambda: OPS.unswizzle_scale(codes(128, 4).view(E8), -1, 4, "swizzled_32_4_4"),
        ["rows", "-1"],
    ),
}


def message(call):
    with pytest.raises(ValueError, match=r".") as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("case", CASES)
def test_one_sentence_names_both_values_eager_and_fake(case):
    call, words = CASES[case]
    eager = message(call)
    assert "\n" not in eager
    assert all(word in eager for word in words), eager
    with FakeTensorMode():
        assert message(call) == eager


@pytest.mark.parametrize("case", CASES)
def test_the_sentence_is_in_the_error_while_tracing(case):
    call, _ = CASES[case]
    eager = message(call)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r".") as caught:
        torch.compile(call, fullgraph=True, backend="aot_eager")()
    assert eager in str(caught.value)


def test_unknown_backend_lists_the_valid_ones():
    with pytest.raises(ValueError, match=r"'torch'.*got 'rocm'"):
        mxfp8_ops.quantize(x(2, 32), backend="rocm")


@pytest.mark.parametrize("convert", ["to_sparse", "to_sparse_csr", "to_mkldnn"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_tensors_that_are_not_dense_are_refused(convert):
    """Their dispatch keys have no native kernel, so that every op comes to its default one."""
    other = getattr(torch.ones(4, 32), convert)()
    for backend in cpu_ops("quantize"):
        for name in ("quantize", "quantize_both"):
            text = message(lambda b=backend, n=name: OPERATIONS[n].op(b)(other))
            assert text == f"input must be dense, of layout torch.strided, got {other.layout}"


def test_scale_on_another_device_is_refused():
    data, scale = codes(2, 32).view(F8), torch.empty(2, 1, dtype=E8, device="meta")
    assert "cpu" in message(lambda: OPS.dequantize_torch(data, scale))
