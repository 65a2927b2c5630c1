"""Which launch settings of the native CUDA kernels are fastest on this GPU, one line per case.

    python benchmarks/tune_cuda.py [--seconds N]

Kernel times come from CUDA graph replay over rotating buffers of more than four times the L2 cache.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

import torch

import mxfp8_ops
from mxfp8_ops import native

BUFFER_BYTES = 280 << 20
SHAPES = ((16384, 16384), (8192, 8192), (512, 7168), (128, 7168), (1, 4096))


def replay_us(calls: list[Callable[[], object]], repeats: int = 9) -> float:
    """Median time of one call, by replay of a graph that holds all of ``calls``."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(repeats):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(calls))
    del kept
    return statistics.median(times)


def host_us(call: Callable[[], object], number: int = 2000) -> float:
    call()
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(number):
            call()
        best = min(best, (time.perf_counter() - start) / number)
        torch.cuda.synchronize()
    return best * 1e6


def buffers(m: int, k: int, dtype: torch.dtype) -> list[torch.Tensor]:
    count = max(2, min(96, BUFFER_BYTES // (m * k * 3)))
    return [torch.randn(m, k, device="cuda", dtype=dtype) for _ in range(count)]


def copy_us(m: int, k: int, moved: float) -> float:
    """A copy that moves as many bytes in all."""
    count = max(2, min(96, BUFFER_BYTES // max(int(moved / 2), 1)))
    size = int(moved / 2)
    pairs = [torch.empty(2, size, dtype=torch.uint8, device="cuda") for _ in range(count)]
    return replay_us([lambda p=p: p[1].copy_(p[0]) for p in pairs])


def case(op: Callable, arguments: list[tuple], options: dict) -> list[Callable[[], object]]:
    return [lambda a=a: op(*a, **options) for a in arguments]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=80)
    deadline = time.monotonic() + parser.parse_args().seconds
    tune = native.library("cuda").mxfp8_cuda_tune
    settings = [(0, 0, -1), *itertools.product((1, 2, 4), (128, 256), (0, 1))]
    for m, k in SHAPES:
        inputs = buffers(m, k, torch.bfloat16)
        moved = m * k * (3 + 1 / 32)
        copy = copy_us(m, k, moved)
        print(f"{m}x{k}: copy {copy:.2f} us, {moved / copy / 1e6:.2f} TB/s", flush=True)
        cases = {
            layout: case(
                torch.ops.mxfp8.quantize_cuda, [(x,) for x in inputs], {"scale_layout": layout}
            )
            for layout in mxfp8_ops.formats.SCALE_LAYOUTS
        }
        for name, calls in cases.items():
            results = []
            for setting in settings:
                if time.monotonic() < deadline or setting == settings[0]:
                    tune(*setting)
                    results.append((replay_us(calls), setting))
            tune(0, 0, -1)
            ranked = sorted(results)[:4]
            text = "  ".join(f"{s} {us:.2f} ({copy / us:.3f})" for us, s in ranked)
            print(f"  {name:<16} default {results[0][0]:.2f} ({copy / results[0][0]:.3f})  {text}")
        if m >= 8192:
            pairs = [torch.ops.mxfp8.quantize_cuda(x) for x in inputs]
            calls = case(torch.ops.mxfp8.dequantize_cuda, pairs, {})
            us = replay_us(calls)
            print(f"  dequantize {us:.2f} ({copy / us:.3f})")
            for name, factor in (
                ("quantize_columnwise", 3 + 1 / 32),
                ("quantize_both", 4 + 1 / 16),
            ):
                op = getattr(torch.ops.mxfp8, f"{name}_cuda")
                us = replay_us(case(op, [(x,) for x in inputs], {}))
                ratio = m * k * factor / us / (moved / copy)
                print(f"  {name} {us:.2f} ({ratio:.3f})", flush=True)
        del inputs
        torch.cuda.empty_cache()
    x = torch.randn(1, 4096, device="cuda", dtype=torch.bfloat16)
    empty = torch.empty(0, 4096, device="cuda", dtype=torch.bfloat16)
    for name, call in {
        "torch.empty_like(x)": lambda: torch.empty_like(x),
        "mxfp8.quantize of no rows": lambda: torch.ops.mxfp8.quantize(empty),
        "x.to(float8_e4m3fn)": lambda: x.to(torch.float8_e4m3fn),
        "mxfp8.quantize": lambda: torch.ops.mxfp8.quantize(x),
        "mxfp8.quantize_cuda": lambda: torch.ops.mxfp8.quantize_cuda(x),
        "mxfp8.quantize_triton": lambda: torch.ops.mxfp8.quantize_triton(x),
    }.items():
        print(f"host time of {name}: {host_us(call):.2f} us")


if __name__ == "__main__":
    main()
