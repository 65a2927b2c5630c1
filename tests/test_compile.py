"""torch.compile(fullgraph=True) with Inductor on CPU gives the bytes of eager."""

from __future__ import annotations

import pytest
import torch
from cases import LAYOUTS, check_python
from torch._dynamo.testing import CompileCounterWithBackend

import mxfp8_ops
from mxfp8_ops import reference
from mxfp8_ops.testing import assert_same_bytes, edge_blocks

OPS = torch.ops.mxfp8
ROWS = (0, 1, 2, 5, 7, 130)


@pytest.fixture(autouse=True)
def _forget_graphs():
    torch._dynamo.reset()


def rows(m, k=96):
    return torch.randn(m, k, generator=torch.Generator().manual_seed(m)).bfloat16()


def round_trip(x, layout):
    data, scale = OPS.quantize(x, scale_layout=layout)
    linear = OPS.unswizzle_scale(scale, x.shape[0], x.shape[1] // 32, layout)
    again = OPS.swizzle_scale(linear, layout)
    values = OPS.dequantize(data, again, scale_layout=layout)
    return data, scale, linear, again, values * 2, data.view(torch.uint8), scale.view(torch.uint8)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_every_row_count_with_consumers_in_the_graph(layout, dynamic):
    compiled = torch.compile(round_trip, fullgraph=True, dynamic=dynamic)
    for m in ROWS if dynamic else (0, 1, 7):
        assert_same_bytes(compiled(rows(m), layout), round_trip(rows(m), layout), f"M={m}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_chosen_by_nonzero_have_an_unbacked_count(layout):
    def chosen(x, mask):
        picked = x[mask.nonzero().squeeze(-1)]
        data, scale = OPS.quantize(picked, scale_layout=layout)
        return data, scale, OPS.dequantize(data, scale, scale_layout=layout)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(chosen, fullgraph=True)
        for count in (130, 3, 1):
            mask = torch.arange(200) < count
            assert_same_bytes(compiled(rows(200), mask), chosen(rows(200), mask))


def test_quantize_of_a_matmul_with_padded_strides():
    def f(a, b):
        return OPS.quantize(torch.mm(a, b))

    a, b = torch.randn(7, 33), torch.randn(33, 96)
    assert_same_bytes(torch.compile(f, fullgraph=True)(a, b), f(a, b))


def test_no_more_recompiles_than_a_trivial_op():
    def graphs(f):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(f, backend=counter, fullgraph=True)
        for m in (5, 7, 130, 9, 64):
            compiled(rows(m))
        return counter.frame_count

    assert graphs(lambda x: OPS.quantize(x)) <= graphs(lambda x: x + 1)


def test_python_api_with_every_keyword_compiles():
    def f(x):
        return mxfp8_ops.quantize_both(
            x, dtype=torch.float8_e5m2, scaling_mode="even", scale_layout_t="linear", alignment=64
        )

    assert_same_bytes(torch.compile(f, fullgraph=True)(rows(5)), f(rows(5)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_traced_reference_gives_the_bytes_of_eager(layout):
    def f(x):
        data, scale = reference.quantize(x, scale_layout=layout)
        return data.view(torch.uint8), scale.view(torch.uint8)

    x = edge_blocks(torch.float32)
    assert_same_bytes(torch.compile(f, fullgraph=True)(x), f(x), layout)


@pytest.mark.parametrize("context", ["autocast", "inference_mode", "deterministic"])
def test_contexts_do_not_change_bytes(context):
    def f(x):
        return OPS.quantize(x, scale_layout="swizzled_8x4")

    expected = f(rows(5))
    compiled = torch.compile(f, fullgraph=True)
    try:
        if context == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                results = f(rows(5)), compiled(rows(5))
        elif context == "inference_mode":
            with torch.inference_mode():
                results = f(rows(5)), compiled(rows(5))
        else:
            torch.use_deterministic_algorithms(True)
            results = f(rows(5)), compiled(rows(5))
    finally:
        torch.use_deterministic_algorithms(False)
    for result in results:
        assert_same_bytes(result, expected)


def test_the_first_call_of_a_process_may_be_compiled():
    assert "same" in check_python(
        "import torch, mxfp8_ops\n"
        "from mxfp8_ops.testing import assert_same_bytes\n"
        "f = lambda x: torch.ops.mxfp8.quantize(x)\n"
        "x = torch.randn(5, 64)\n"
        "got = torch.compile(f, fullgraph=True)(x)\n"
        "assert_same_bytes(got, f(x)); print('same')\n"
    )
