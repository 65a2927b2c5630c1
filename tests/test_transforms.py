"""vmap, torch.func, autocast, inference mode and deterministic mode."""

from __future__ import annotations

import warnings

import pytest
import torch
from cases import LAYOUTS, cpu_ops

import mxfp8_ops
from mxfp8_ops import testing
from mxfp8_ops.ops import OPERATIONS


def stacked(results, dim=0):
    return [
        torch.stack([r.view(torch.uint8) for r in column], dim)
        for column in zip(*results, strict=True)
    ]


@pytest.fixture(autouse=True)
def _no_slow_vmap():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*batching rule.*")
        yield


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(4, 33, 64), (5, 64), (2, 3, 33, 64)], ids=str)
def test_vmap_equals_the_loop(shape, layout):
    x = torch.randn(shape)
    for backend in cpu_ops("quantize"):
        op = OPERATIONS["quantize"].op(backend)
        for dim in range(len(shape) - 1):
            mapped = torch.vmap(lambda t, op=op: op(t, scale_layout=layout), in_dims=dim)(x)
            looped = [op(t, scale_layout=layout) for t in x.unbind(dim)]
            for got, expected in zip(mapped, stacked(looped), strict=True):
                assert torch.equal(got.view(torch.uint8), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(4, 33, 64), (5, 64)], ids=str)
def test_vmap_of_the_way_back(shape, layout):
    pairs = [torch.ops.mxfp8.quantize(t, scale_layout=layout) for t in torch.randn(shape)]
    data, scale = (
        torch.stack([p[i].view(torch.uint8) for p in pairs]).view(pairs[0][i].dtype) for i in (0, 1)
    )

    def dequantize(d, s):
        return torch.ops.mxfp8.dequantize(d, s, scale_layout=layout)

    looped = torch.stack([dequantize(d, s) for d, s in pairs])
    testing.assert_same_bytes(torch.vmap(dequantize)(data, scale), looped)
    shared = torch.vmap(dequantize, in_dims=(0, None))(data, pairs[0][1])
    expected = torch.stack([dequantize(d, pairs[0][1]) for d, _ in pairs])
    testing.assert_same_bytes(shared, expected)


def test_vmap_of_layout_ops():
    scales = torch.randint(0, 255, (3, 33, 5), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    tiles = torch.vmap(lambda s: torch.ops.mxfp8.swizzle_scale(s, "swizzled_8x4"))(scales)
    back = torch.vmap(lambda s: torch.ops.mxfp8.unswizzle_scale(s, 33, 5, "swizzled_8x4"))(tiles)
    testing.assert_same_bytes(back, scales)


def test_vmap_of_both_directions():
    x = torch.randn(3, 32, 64)
    mapped = torch.vmap(torch.ops.mxfp8.quantize_both)(x)
    testing.assert_same_bytes(mapped, torch.ops.mxfp8.quantize_both(x))


def test_vmap_inside_compile():
    x = torch.randn(4, 33, 64)
    compiled = torch.compile(torch.vmap(torch.ops.mxfp8.quantize), fullgraph=True)
    testing.assert_same_bytes(compiled(x), torch.ops.mxfp8.quantize(x))


def round_trip(x):
    return mxfp8_ops.dequantize(*mxfp8_ops.quantize(x), dtype=torch.float32)


def test_gradients_pass_by():
    x = torch.randn(4, 64, requires_grad=True)
    out = round_trip(x)
    assert not out.requires_grad
    with pytest.raises(RuntimeError, match="does not require grad"):
        out.sum().backward()
    gradient = torch.func.grad(lambda t: (2 * t).sum() + round_trip(t).sum())(x.detach())
    assert torch.equal(gradient, torch.full_like(gradient, 2))
    _, tangent = torch.func.jvp(round_trip, (x.detach(),), (torch.ones(4, 64),))
    assert not tangent.any()


def test_functionalize():
    x = torch.randn(4, 64)
    testing.assert_same_bytes(
        torch.func.functionalize(torch.ops.mxfp8.quantize)(x), mxfp8_ops.quantize(x)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_autocast_changes_no_byte(dtype):
    x = testing.adversarial_blocks(dtype, random=200)
    expected = {b: OPERATIONS["quantize"].op(b)(x) for b in cpu_ops("quantize")}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for backend, result in expected.items():
            testing.assert_same_bytes(OPERATIONS["quantize"].op(backend)(x), result)
        compiled = torch.compile(torch.ops.mxfp8.quantize, fullgraph=True)
        testing.assert_same_bytes(compiled(x), expected[None])


def test_inference_mode():
    x = torch.randn(4, 64)
    expected = mxfp8_ops.quantize(x)
    with torch.inference_mode():
        testing.assert_same_bytes(mxfp8_ops.quantize(x), expected)
        testing.assert_same_bytes(
            torch.compile(torch.ops.mxfp8.quantize, fullgraph=True)(x), expected
        )


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_deterministic_mode_leaves_padding_zero(layout):
    """It fills new FP8 tensors with NaN, eager and not."""
    x = torch.ones(1, 96)
    expected = mxfp8_ops.quantize(x, scale_layout=layout)
    torch.use_deterministic_algorithms(True)
    try:
        for backend in cpu_ops("quantize"):
            result = OPERATIONS["quantize"].op(backend)(x, scale_layout=layout)
            testing.assert_same_bytes(result, expected)
            assert (result[1].view(torch.uint8) != 0).sum() == 3
        compiled = torch.compile(
            lambda t: torch.ops.mxfp8.quantize(t, scale_layout=layout), fullgraph=True
        )
        testing.assert_same_bytes(compiled(x), expected)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.skipif(
    not torch.set_flush_denormal(False), reason="this processor cannot flush subnormals"
)
def test_flushing_of_subnormals_changes_no_byte_of_the_native_kernels():
    x = testing.random_magnitudes(torch.float32, 3000)
    data, scale = mxfp8_ops.quantize(x)
    back = mxfp8_ops.dequantize(data, scale, dtype=torch.float32)
    torch.set_flush_denormal(True)
    try:
        for backend in cpu_ops("quantize"):
            if backend == "torch":
                continue
            if backend is None and "cpu" not in cpu_ops("quantize"):
                continue
            testing.assert_same_bytes(OPERATIONS["quantize"].op(backend)(x), (data, scale))
            testing.assert_same_bytes(
                OPERATIONS["dequantize"].op(backend)(data, scale, dtype=torch.float32), back
            )
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize(
    "call",
    [
        lambda map_, x: map_(torch.ops.mxfp8.quantize)(x(64)),
        lambda map_, x: map_(lambda t: torch.ops.mxfp8.quantize_columnwise(t, alignment=32))(
            x(3, 32)
        ),
        lambda map_, x: map_(lambda t: torch.ops.mxfp8.quantize_both(t, alignment=32))(x(3, 32)),
        lambda map_, x: map_(torch.ops.mxfp8.quantize)(x(3, 33)),
        lambda map_, x: map_(lambda s: torch.ops.mxfp8.swizzle_scale(s, "linear"))(e8m0(3)),
        lambda map_, x: map_(lambda s: torch.ops.mxfp8.unswizzle_scale(s, 1, 5, "linear"))(
            e8m0(3, 5)
        ),
        lambda map_, x: map_(torch.ops.mxfp8.dequantize)(codes(3, 32), e8m0(3, 1, 1)),
        lambda map_, x: map_(torch.ops.mxfp8.dequantize)(codes(3, 1, 32), e8m0(3, 1)),
    ],
)
def test_vmap_refuses_what_the_unmapped_call_refuses(call):
    """A batch in front would make matrices of rows, and blocks would run across it."""

    def first(function):
        return lambda *tensors: function(*(t[0] for t in tensors))

    with pytest.raises(ValueError, match=r"\w") as unmapped:
        call(first, torch.randn)
    with pytest.raises(ValueError, match=r"\w") as mapped:
        call(torch.vmap, torch.randn)
    assert str(mapped.value) == str(unmapped.value)


def codes(*shape):
    return torch.zeros(shape, dtype=torch.uint8).view(torch.float8_e4m3fn)


def e8m0(*shape):
    return torch.zeros(shape, dtype=torch.uint8).view(torch.float8_e8m0fnu)
