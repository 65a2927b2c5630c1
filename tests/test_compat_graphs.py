"""The drop-ins in compiled graphs and on meta tensors, and what they say to bad input."""

from __future__ import annotations

import re

import pytest
import torch
from test_compat import E4M3, U8, sample

from mxfp8_ops.compat import flashinfer, sglang, vllm
from mxfp8_ops.testing import assert_same_bytes


def vllm_round(x):
    data, scale = vllm.mxfp8_e4m3_quantize(x)
    tiles = vllm.swizzle_mxfp8_scale(scale, x.shape[0], x.shape[1])
    return data, scale, tiles, vllm.dequant_mxfp8_to_bf16(data, scale)


def flashinfer_round(x):
    data, scale = flashinfer.mxfp8_quantize(x, alignment=64)
    linear = flashinfer.mxfp8_quantize(x, sf_swizzle_layout=flashinfer.SfLayout.layout_linear)
    tiles = flashinfer.block_scale_interleave(linear[1].view(-1, x.shape[-1] // 32))
    return (
        data,
        scale,
        *linear,
        tiles,
        flashinfer.mxfp8_dequantize_host(linear[0], linear[1], False),
    )


GRAPHS = {
    "vllm": vllm_round,
    "vllm swizzled": lambda x: vllm.mxfp8_e4m3_quantize(x, True, 128),
    "vllm xpu": vllm.xpu_mxfp8_quantize,
    "vllm 8x4": vllm.flashinfer_mxfp8_quantize_8x4,
    "sglang": sglang.flashinfer_mxfp8_quantize,
    "sglang matrix": sglang.mxfp8_group_quantize,
    "sglang swizzled": sglang.mxfp8_quantize_swizzled,
    "flashinfer": flashinfer_round,
}
OF_BATCHES = ("vllm swizzled", "vllm xpu", "sglang", "flashinfer")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_compiled_graphs_give_the_bytes_of_eager(name, dynamic):
    compiled = torch.compile(GRAPHS[name], fullgraph=True, dynamic=dynamic)
    for rows in (5, 130, 0, 1) if dynamic else (5, 0):
        x = sample(rows, 96)
        assert_same_bytes(compiled(x), GRAPHS[name](x), f"{rows} rows")
    if name in OF_BATCHES:
        x = sample(2, 5, 96)
        assert_same_bytes(compiled(x), GRAPHS[name](x), "batch")


@pytest.mark.parametrize("name", [n for n in GRAPHS if n not in ("vllm", "flashinfer")])
def test_rows_chosen_by_nonzero_have_an_unbacked_count(name):
    def chosen(x, mask):
        return GRAPHS[name](x[mask.nonzero().squeeze(-1)])

    mask = torch.arange(200) < 130
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(chosen, fullgraph=True)
        assert_same_bytes(compiled(sample(200, 96), mask), chosen(sample(200, 96), mask))


@pytest.mark.parametrize("name", GRAPHS)
def test_meta_tensors_have_the_shapes_and_strides_of_real_ones(name):
    for shape in [(5, 96), (130, 64), (0, 64)] + ([(2, 5, 96)] if name in OF_BATCHES else []):
        real = GRAPHS[name](sample(*shape))
        meta = GRAPHS[name](sample(*shape).to("meta"))
        for r, m in zip(real, meta, strict=True):
            assert (r.shape, r.dtype, r.stride()) == (m.shape, m.dtype, m.stride())


X = torch.zeros(4, 64)
DATA, SCALE = torch.zeros(4, 64, dtype=E4M3), torch.zeros(4, 2, dtype=U8)
BAD = [
    (lambda: vllm.mxfp8_e4m3_quantize(torch.zeros(4, 40)), "multiple of 32, got shape (4, 40)"),
    (lambda: vllm.mxfp8_e4m3_quantize(torch.zeros(4, 40), False, 64), "multiple of 32, got shape"),
    (lambda: vllm.mxfp8_e4m3_quantize(torch.tensor(1.0)), "1 or more dimensions, got shape ()"),
    (lambda: vllm.mxfp8_e4m3_quantize([1.0]), "x must be a torch.Tensor, got list"),
    (lambda: vllm.mxfp8_e4m3_quantize(X, True, 48), "positive multiple of 32, got 48"),
    (lambda: vllm.mxfp8_e4m3_quantize(X, False, -32), "positive multiple of 32, got -32"),
    (lambda: vllm.mxfp8_e4m3_quantize(X.double()), "got torch.float64"),
    (lambda: vllm.xpu_mxfp8_quantize(X, torch.int8), "got torch.int8"),
    (
        lambda: vllm.flashinfer_mxfp8_quantize_8x4(X[None]),
        "a must have 2 dimensions, got shape (1,",
    ),
    (lambda: vllm.dequant_mxfp8_to_bf16(DATA, SCALE.float()), "got dtype torch.float32"),
    (lambda: vllm.dequant_mxfp8_to_bf16(DATA, SCALE.tolist()), "scales must be a torch.Tensor"),
    (lambda: vllm.dequant_mxfp8_to_bf16(DATA, SCALE.flatten()), "must have shape (4, 2)"),
    (lambda: vllm.dequant_mxfp8_to_bf16(X, SCALE), "got torch.float32"),
    (lambda: vllm.swizzle_mxfp8_scale(SCALE, 4, 96), "got shape (4, 2) with M = 4 and K = 96"),
    (lambda: vllm.swizzle_mxfp8_scale(SCALE.flatten(), 4, 64), "got shape (8,)"),
    (lambda: vllm.swizzle_mxfp8_scale(SCALE.bfloat16(), 4, 64), "got dtype torch.bfloat16"),
    (lambda: sglang.flashinfer_mxfp8_quantize(X[0]), "2 or more dimensions, got shape (64,)"),
    (lambda: sglang.flashinfer_mxfp8_quantize(torch.zeros(4, 40)), "multiple of 32"),
    (lambda: sglang.mxfp8_group_quantize(X[None]), "must have 2 dimensions"),
    (lambda: sglang.mxfp8_quantize_swizzled(X[0]), "must have 2 dimensions"),
    (lambda: flashinfer.mxfp8_quantize(X, True, 0), "positive multiple of 32, got 0"),
    (lambda: flashinfer.mxfp8_quantize(X, backend="cutlass"), "got 'cutlass'"),
    (lambda: flashinfer.mxfp8_quantize(X, sf_swizzle_layout=3), "2 (linear), got 3"),
    (lambda: flashinfer.mxfp8_quantize(X, sf_swizzle_layout=True), "got True"),
    (lambda: flashinfer.mxfp8_quantize(X, sf_swizzle_layout="8x4"), "got '8x4'"),
    (lambda: flashinfer.mxfp8_dequantize_host(DATA, SCALE), "512 elements for 4 rows of 2 scales"),
    (lambda: flashinfer.mxfp8_dequantize_host(X, SCALE, False), "got torch.float32"),
    (lambda: flashinfer.block_scale_interleave(SCALE[0]), "2 or 3 dimensions, got shape (2,)"),
    (lambda: flashinfer.block_scale_interleave(SCALE.int()), "got dtype torch.int32"),
]


@pytest.mark.parametrize("case", range(len(BAD)), ids=lambda i: BAD[i][1])
def test_bad_input_gets_a_sentence(case):
    call, words = BAD[case]
    with pytest.raises((ValueError, TypeError), match=re.escape(words)):
        call()


@pytest.mark.parametrize("dynamic", [False, True])
def test_bad_input_gets_the_sentence_while_tracing(dynamic):
    compiled = torch.compile(flashinfer.mxfp8_quantize, fullgraph=True, dynamic=dynamic)
    with pytest.raises(Exception, match="must be a multiple of 32"):
        compiled(torch.zeros(4, 40))


def test_no_gradient_and_fresh_storage():
    x = torch.randn(4, 64, requires_grad=True)
    for function in (vllm.mxfp8_e4m3_quantize, flashinfer.mxfp8_quantize):
        data, scale = function(x)
        assert not data.requires_grad
        assert data.untyped_storage().data_ptr() != scale.untyped_storage().data_ptr()
    zeros = torch.zeros(128, 4, dtype=U8)
    assert vllm.swizzle_mxfp8_scale(zeros, 128, 128).data_ptr() != zeros.data_ptr()
