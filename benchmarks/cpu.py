"""The native CPU backend against memcpy, the Inductor-compiled reference and eager.

    python benchmarks/cpu.py [--megabytes 64] [--threads 2] [--fresh] [--json FILE]

Bytes: input + data + scales, and bytes read plus bytes written for the copy, which moves as many in all.
Candidates of a row take turns; figures are medians. Outputs come from memory that the process already
has, as with a caching allocator; --fresh leaves glibc's default, where every large output is new memory
from the kernel and page faults cost more than the work.
"""

from __future__ import annotations

import argparse
import json
import platform
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import mxfp8_ops
from mxfp8_ops import formats, reference
from mxfp8_ops.benchmark.timing import keep_freed_memory, medians, nbytes


def copy_of(total: int) -> Callable[[], Any]:
    """A copy that reads half of ``total`` bytes and writes as many."""
    source = torch.randint(0, 255, (total // 2,), dtype=torch.uint8)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def rows(megabytes: int, repeats: int) -> list[dict[str, Any]]:
    columns = 4096
    found = []
    for dtype in formats.INPUT_DTYPES:
        x = torch.randn(megabytes * 2**20 // dtype.itemsize // columns, columns).to(dtype)
        pair = mxfp8_ops.quantize(x)
        total = nbytes((x, *pair))
        cases: dict[str, Callable[[], Any]] = {"memcpy": copy_of(total)}
        for layout in formats.SCALE_LAYOUTS:
            cases[f"quantize {layout}"] = lambda x=x, o=layout: mxfp8_ops.quantize(
                x, scale_layout=o
            )
        for mode in formats.SCALING_MODES[1:]:
            cases[f"quantize {mode}"] = lambda x=x, o=mode: mxfp8_ops.quantize(x, scaling_mode=o)
        cases["quantize e5m2"] = lambda x=x: mxfp8_ops.quantize(x, dtype=torch.float8_e5m2)
        cases["quantize_columnwise"] = lambda x=x: mxfp8_ops.quantize_columnwise(x)
        cases["quantize_both"] = lambda x=x: mxfp8_ops.quantize_both(x)
        cases["dequantize"] = lambda p=pair, d=dtype: mxfp8_ops.dequantize(*p, dtype=d)
        tiles = mxfp8_ops.quantize(x, scale_layout="swizzled_32_4_4")
        cases["dequantize swizzled_32_4_4"] = lambda p=tiles, d=dtype: mxfp8_ops.dequantize(
            *p, dtype=d, scale_layout="swizzled_32_4_4"
        )
        seconds = medians(cases, repeats)
        torch._dynamo.reset()
        compiled = torch.compile(reference.quantize_bytes, fullgraph=True, dynamic=False)
        slow = {"Inductor-compiled reference": lambda x=x, f=compiled: f(x)}
        slow["eager reference"] = lambda x=x: reference.quantize(x)
        seconds |= medians(slow, 1)
        for name, value in seconds.items():
            moved = 2 * nbytes(pair) + nbytes(x) if name == "quantize_both" else total
            found.append(
                {
                    "dtype": str(dtype).removeprefix("torch."),
                    "case": name,
                    "milliseconds": value * 1e3,
                    "gigabytes_per_second": moved / value / 1e9,
                    "of_memcpy": moved / value / (total / seconds["memcpy"]),
                }
            )
    return found


def host_overhead() -> dict[str, float]:
    """Microseconds of an eager call on a 1 x 64 tensor; the best of 20 rounds."""
    x = torch.randn(1, 64).to(torch.bfloat16)
    data, scale = mxfp8_ops.quantize(x)
    tiles = mxfp8_ops.swizzle_scale(scale, "swizzled_8x4")
    square = torch.randn(32, 64).to(torch.bfloat16)
    op = torch.ops.mxfp8
    calls = {
        "x.to(torch.float8_e4m3fn)": lambda: x.to(torch.float8_e4m3fn),
        "quantize": lambda: op.quantize(x),
        "quantize swizzled_32_4_4": lambda: op.quantize(x, scale_layout="swizzled_32_4_4"),
        "dequantize": lambda: op.dequantize(data, scale),
        "swizzle_scale": lambda: op.swizzle_scale(scale, "swizzled_8x4"),
        "unswizzle_scale": lambda: op.unswizzle_scale(tiles, 1, 2, "swizzled_8x4"),
        "quantize_columnwise (32 x 64)": lambda: op.quantize_columnwise(square),
        "quantize_both (32 x 64)": lambda: op.quantize_both(square),
    }
    return {
        name: min(timeit.repeat(call, number=1000, repeat=20)) * 1e3 for name, call in calls.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=int, default=64, help="size of the input")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--fresh", action="store_true", help="new memory for every output")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if not arguments.fresh:
        keep_freed_memory()

    served = next(row.name for row in mxfp8_ops.backends("cpu") if row.chosen)
    found = rows(arguments.megabytes, arguments.repeats)
    overhead = host_overhead()
    console = Console()
    title = f"{arguments.megabytes} MiB of input, {arguments.threads} threads, backend {served}"
    table = Table(title=title)
    for header in ("dtype", "case", "ms", "GB/s", "of memcpy"):
        table.add_column(header, justify="left" if header in ("dtype", "case") else "right")
    for row in found:
        table.add_row(
            row["dtype"],
            row["case"],
            f"{row['milliseconds']:.2f}",
            f"{row['gigabytes_per_second']:.2f}",
            f"{row['of_memcpy']:.2f}",
        )
    console.print(table)
    table = Table(title="Host time of an eager call, 1 x 64 unless said otherwise")
    for header in ("call", "us", "of x.to"):
        table.add_column(header, justify="left" if header == "call" else "right")
    base = overhead["x.to(torch.float8_e4m3fn)"]
    for name, value in overhead.items():
        table.add_row(name, f"{value:.2f}", f"{value / base:.2f}")
    console.print(table)
    if arguments.json:
        record = {
            "torch": torch.__version__,
            "mxfp8_ops": mxfp8_ops.__version__,
            "processor": platform.processor() or platform.machine(),
            "threads": arguments.threads,
            "fresh_memory": arguments.fresh,
            "rows": found,
            "host_microseconds": overhead,
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
