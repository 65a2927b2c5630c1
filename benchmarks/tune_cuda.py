"""Times the CUDA kernels beside a copy on this GPU, for each launch configuration; a compact table.

Graph replay over rotating buffers larger than L2; a ratio is bytes per second over those of ``copy_``.
"""

from __future__ import annotations

import itertools

import torch

import mxfp8_ops
from mxfp8_ops import native

BUFFERS_BYTES = 256 << 20


def replay_us(calls, repeats=20):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        kept = [call() for call in calls]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    best = float("inf")
    for _ in range(3):
        start.record()
        for _ in range(repeats):
            graph.replay()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end))
    del kept
    return best * 1e3 / repeats / len(calls)


def main():
    tune = native.library("cuda").mxfp8_cuda_tune
    for m, k in ((16384, 16384), (8192, 8192), (512, 7168), (128, 7168), (1, 4096)):
        count = max(2, min(64, BUFFERS_BYTES // (m * k * 3)))
        inputs = [torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
        read = m * k * 2
        copy = replay_us([lambda x=x: torch.empty_like(x).copy_(x) for x in inputs])
        speed = 2 * read / copy
        print(f"{m}x{k}: copy {copy:.2f} us, {speed / 1e6:.2f} TB/s")
        for layout, unroll, threads, overlap in itertools.product(
            mxfp8_ops.formats.SCALE_LAYOUTS, (0, 1, 2, 4), (128, 256), (0, 1)
        ):
            tune(unroll, threads, overlap)
            us = replay_us([lambda x=x: torch.ops.mxfp8.quantize_cuda(x, scale_layout=layout)
                            for x in inputs])
            ratio = (read * 1.5 + m * k / 32) / us / speed
            print(f"  {layout[-8:]:>8} u{unroll} t{threads} pdl{overlap}: {us:.2f} us {ratio:.3f}")
        tune(0, 0, -1)
        if m >= 8192:
            pairs = [torch.ops.mxfp8.quantize_cuda(x) for x in inputs]
            for name, call, moved, items in (
                ("columnwise", torch.ops.mxfp8.quantize_columnwise_cuda, 3 + 1 / 32, inputs),
                ("both", torch.ops.mxfp8.quantize_both_cuda, 4 + 1 / 16, inputs),
                ("dequantize", lambda p: torch.ops.mxfp8.dequantize_cuda(*p), 3 + 1 / 32, pairs),
            ):
                us = replay_us([lambda x=x, f=call: f(x) for x in items])
                print(f"  {name}: {us:.2f} us {m * k * moved / us / speed:.3f}")


main()
