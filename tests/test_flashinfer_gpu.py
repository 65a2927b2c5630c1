"""The real FlashInfer kernel through mxfp8::quantize_cute_dsl, on a GPU of compute capability 9.0 or newer.

``MXFP8_OPS_REQUIRE_FLASHINFER=1`` turns a missing package or GPU from a skip into a failure.
"""

from __future__ import annotations

import os
import re

import pytest
import torch
from flashinfer_emulator import arrange, emulate_blocks

from mxfp8_ops import dispatch, formats, reference, testing
from mxfp8_ops.backends import cute_dsl

pytestmark = pytest.mark.gpu

LAYOUTS = {
    "linear": "layout_linear",
    "swizzled_32_4_4": "layout_128x4",
    "swizzled_8x4": "layout_8x4",
}
HALF_TYPES = (torch.bfloat16, torch.float16)
FLUSH_LIMIT = 448.0 * 2.0**-127

QUANTIZE = torch.ops.mxfp8.quantize_cute_dsl


def _missing() -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device"
    return cute_dsl.BACKEND.unavailable_reason(torch.device("cuda", 0))


@pytest.fixture(autouse=True)
def _open_gate(monkeypatch):
    monkeypatch.setenv("MXFP8_OPS_CUTE_DSL_MIN_CAPABILITY", "9.0")
    monkeypatch.setattr(dispatch, "_reasons", {})
    monkeypatch.setattr(dispatch, "_routes", {})
    reason = _missing()
    if reason is not None:
        if os.environ.get("MXFP8_OPS_REQUIRE_FLASHINFER", "") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


def kernel_version() -> tuple[int, ...]:
    found = cute_dsl.quantizer()
    assert not isinstance(found, str)
    return tuple(int(n) for n in re.findall(r"\d+", found.version)[:3])


def poison(x: torch.Tensor, layout: str) -> None:
    """Leave 0xFF in the memory that the caching allocator hands out next."""
    for shape in formats.quantized_shapes(x.shape, layout, None):
        torch.empty(shape, dtype=torch.uint8, device=x.device).fill_(0xFF)


def exact_blocks(dtype: torch.dtype) -> torch.Tensor:
    """Every block of the adversarial sets and every 16-bit pattern that the kernel must get right."""
    x = torch.cat([testing.adversarial_blocks(dtype), testing.all_patterns_as_maxima(dtype)])
    amax = x.float().abs().amax(-1)
    return x[(amax == 0) | ((amax > FLUSH_LIMIT) & amax.isfinite())]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_the_contract_in_the_exact_domain(dtype, layout):
    blocks = exact_blocks(dtype)
    for columns in (1, 3, 128):
        rows = blocks.shape[0] // columns
        x = blocks[: rows * columns].reshape(rows, columns * 32)
        on_gpu = x.cuda()
        poison(on_gpu, layout)
        result = QUANTIZE(on_gpu, scale_layout=layout)
        expected = reference.quantize(x, scale_layout=layout)
        testing.assert_same_bytes(result, expected, f"{columns} columns")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_ragged_shapes(dtype, layout):
    blocks = exact_blocks(dtype)
    generator = torch.Generator().manual_seed(0)
    for rows in (1, 3, 7, 9, 37, 129, 300):
        for size in (32, 96, 160, 512, 7168, 16384):
            pick = torch.randint(blocks.shape[0], (rows * size // 32,), generator=generator)
            x = blocks[pick].reshape(rows, size)
            on_gpu = x.cuda()
            poison(on_gpu, layout)
            result = QUANTIZE(on_gpu, scale_layout=layout)
            expected = reference.quantize(x, scale_layout=layout)
            testing.assert_same_bytes(result, expected, f"{rows} x {size}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_thread_mappings(layout):
    """FlashInfer takes another kernel from M * K / 32 = 65536 on."""
    for rows in (511, 512, 1024):
        x = torch.randn(rows, 4096, generator=torch.Generator().manual_seed(rows)).bfloat16()
        result = QUANTIZE(x.cuda(), scale_layout=layout)
        testing.assert_same_bytes(result, reference.quantize(x, scale_layout=layout), f"{rows}")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_deviations_are_those_of_the_emulator(dtype, layout):
    """So that what the tests without a GPU prove of the emulator holds for the kernel."""
    x = torch.cat([testing.adversarial_blocks(dtype), testing.all_patterns_as_maxima(dtype)])
    codes, byte = emulate_blocks(x, kernel_version())
    data, scale = QUANTIZE(x.cuda(), scale_layout=layout)
    testing.assert_same_bytes(data, codes.view(torch.float8_e4m3fn))
    testing.assert_same_bytes(scale.flatten().view(torch.uint8), arrange(byte, LAYOUTS[layout]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(4096,), (2, 128, 96), (1, 5, 64), (0, 64), (3, 0, 32)])
@pytest.mark.parametrize("alignment", [None, 128])
def test_shapes(shape, alignment, layout):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    options = {"scale_layout": layout, "alignment": alignment}
    testing.assert_same_bytes(QUANTIZE(x.cuda(), **options), reference.quantize(x, **options))


def test_views():
    base = torch.randn(256, 512, generator=torch.Generator().manual_seed(2)).bfloat16().cuda()
    for name, x in {
        "transposed": base.mT,
        "columns": base[:, 32:96],
        "2 bytes off": base.flatten()[1 : 1 + 64 * 512].view(64, 512),
        "expanded": base[:1].expand(9, 512),
        "requires grad": base.clone().requires_grad_(),
    }.items():
        testing.assert_same_bytes(QUANTIZE(x), reference.quantize(x.cpu()), name)


def test_another_stream():
    x = torch.zeros(64, 4096, dtype=torch.bfloat16, device="cuda")
    QUANTIZE(x)
    source = torch.randn(64, 4096, generator=torch.Generator().manual_seed(3)).bfloat16()
    pinned = source.pin_memory()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # a launch on another stream would read zeros
        x.copy_(pinned, non_blocking=True)
        result = QUANTIZE(x)
    stream.synchronize()
    testing.assert_same_bytes(result, reference.quantize(source))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cuda_graph(layout):
    x = torch.zeros(37, 4096, dtype=torch.bfloat16, device="cuda")
    QUANTIZE(x, scale_layout=layout)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = QUANTIZE(x, scale_layout=layout)
    for seed in range(3):
        source = torch.randn(37, 4096, generator=torch.Generator().manual_seed(seed)).bfloat16()
        x.copy_(source)
        for output in result:
            output.view(torch.uint8).fill_(0xFF)
        graph.replay()
        expected = reference.quantize(source, scale_layout=layout)
        testing.assert_same_bytes(result, expected, f"replay {seed}")


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_compiled(mode):
    def double_and_quantize(x):
        return QUANTIZE(x * 2, scale_layout="swizzled_32_4_4")

    compiled = torch.compile(double_and_quantize, fullgraph=True, mode=mode)
    for seed in range(3):
        x = torch.randn(130, 256, generator=torch.Generator().manual_seed(seed)).bfloat16()
        result = [t.clone() for t in compiled(x.cuda())]
        expected = reference.quantize(x * 2, scale_layout="swizzled_32_4_4")
        testing.assert_same_bytes(result, expected, f"call {seed}")
