"""Sweep the launch configurations of the Triton backend on this GPU; prints the best of each case.

python benchmarks/tune_triton.py [--cases flat,tiles,columns,dequantize] [--seconds 90]
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import mxfp8_ops
from mxfp8_ops.backends import triton as backend
from mxfp8_ops.backends import triton_plans
from mxfp8_ops.backends.triton_plans import Config
from mxfp8_ops.benchmark.measure import random_input
from mxfp8_ops.benchmark.timing import copy_time, graph_time, nbytes, rotating

FLAT_SHAPES = ("1x4096", "128x7168", "512x7168", "8192x8192", "16384x16384")
TILE_SHAPES = ("1x4096", "128x7168", "512x7168", "8192x8192")


def flat_configs(small: bool) -> Iterator[Config]:
    sizes = (
        ((32, 1), (32, 2), (32, 4), (64, 2), (64, 4))
        if small
        else ((64, 1), (64, 2), (128, 2), (128, 4), (256, 4), (256, 8), (512, 8))
    )
    for (blocks, warps), vector, evict, pdl in itertools.product(
        sizes, (8, 16), (False, True), (True,) if small else (False, True)
    ):
        if small and evict:
            continue
        yield Config(1, blocks, warps, vector, evict, pdl)
    if small:
        yield Config(1, 32, 2, 16, False, False)


def tile_configs(small: bool) -> Iterator[Config]:
    sizes = (
        ((8, 4, 1), (8, 4, 2), (8, 8, 2), (4, 16, 2))
        if small
        else ((4, 16, 1), (8, 8, 2), (8, 16, 2), (8, 32, 4), (16, 16, 4), (8, 32, 8), (4, 32, 2))
    )
    for (rows, columns, warps), vector, evict in itertools.product(sizes, (8, 16), (False, True)):
        if small and evict:
            continue
        for pdl in (True, False) if evict == small else (True,):
            yield Config(rows, columns, warps, vector, evict, pdl)


def column_configs(small: bool) -> Iterator[Config]:
    sizes = ((128, 64, 4), (128, 128, 8), (256, 64, 8), (64, 64, 2), (64, 128, 4), (128, 32, 2))
    for (rows, columns, warps), group, evict in itertools.product(sizes, (1, 4, 16), (False, True)):
        yield Config(rows, columns, warps, 8, evict, True, group)


def cases(kinds: list[str]) -> Iterator[tuple[str, str, Callable[..., Any], Iterator[Config]]]:
    for shape in FLAT_SHAPES if "flat" in kinds else ():
        yield "flat linear", shape, quantize("linear"), flat_configs(is_small(shape))
    for layout in ("swizzled_32_4_4", "swizzled_8x4"):
        for shape in TILE_SHAPES if "tiles" in kinds else ():
            yield f"tiles {layout}", shape, quantize(layout), tile_configs(is_small(shape))
    for shape in ("8192x8192",) if "dequantize" in kinds else ():
        yield "dequantize linear", shape, dequantize("linear"), flat_configs(False)
        layout = "swizzled_32_4_4"
        yield f"dequantize {layout}", shape, dequantize(layout), tile_configs(False)
    for both in (False, True):
        for shape in ("8192x8192",) if "columns" in kinds else ():
            name = "both" if both else "columnwise"
            yield name, shape, columns(both), column_configs(False)


def is_small(shape: str) -> bool:
    return shape in ("1x4096", "128x7168", "512x7168")


Case = Callable[[torch.Tensor, Config], tuple[Callable[..., Any], Any]]


def quantize(layout: str) -> Case:
    def build(x: torch.Tensor, config: Config) -> tuple[Callable[..., Any], Any]:
        cast = backend.cast_of(x.device)
        plan = triton_plans.plan_quantize(x, cast=cast, scale_layout=layout, config=config)
        outputs = plan(x)
        return lambda t: plan(t, outputs=outputs), (x, *outputs)

    return build


def dequantize(layout: str) -> Case:
    def build(x: torch.Tensor, config: Config) -> tuple[Callable[..., Any], Any]:
        data, scale = mxfp8_ops.quantize(x, scale_layout=layout, backend="triton")
        cast = backend.cast_of(x.device)
        plan = triton_plans.plan_dequantize(
            data, scale, cast=cast, scale_layout=layout, config=config
        )
        # The large side rotates: here that is the output.
        return lambda t: plan(data, scale, outputs=[t]), (x, data, scale)

    return build


def columns(both: bool) -> Case:
    def build(x: torch.Tensor, config: Config) -> tuple[Callable[..., Any], Any]:
        plan = triton_plans.plan_columns(
            x, both=both, cast=backend.cast_of(x.device), config=config
        )
        outputs = plan(x)
        return lambda t: plan(t, outputs=outputs), (x, *outputs)

    return build


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="flat,tiles,columns,dequantize")
    parser.add_argument("--seconds", type=float, default=90.0, help="stop after so long")
    options = parser.parse_args()
    started = time.time()
    device = torch.device("cuda", torch.cuda.current_device())
    for name, shape, build, configs in cases(options.cases.split(",")):
        make = random_input(shape, torch.bfloat16)
        first = make(0)
        results, failures, moved = [], [], 0
        inputs = [first]
        for config in configs:
            if time.time() - started > options.seconds:
                print("out of time")
                return 0
            try:
                call, tensors = build(first, config)
                moved = nbytes(tensors)
                inputs += [make(i) for i in range(len(inputs), rotating(moved, device))]
                results.append((graph_time(call, inputs, 0.01), config))
            except Exception as error:
                failures.append((config, f"{type(error).__name__}: {str(error)[:80]}"))
        copy = copy_time(moved, 0.01, device)
        print(f"{name} {shape}: copy {copy * 1e6:.2f} us; {time.time() - started:.0f} s")
        for seconds, config in sorted(results, key=lambda r: r[0])[:4]:
            ratio = copy / seconds
            print(f"  {seconds * 1e6:8.2f} us {ratio:.3f} {tuple(config)}")
        for config, error in failures[:2]:
            print(f"  FAILED {tuple(config)} {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
