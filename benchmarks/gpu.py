"""Every backend on one GPU against copy, the Inductor-compiled reference and importable peers.

    python benchmarks/gpu.py [--quick] [--shapes 1x4096,8192x8192] [--backends triton,cuda] [--output DIR]

Kernel time: a CUDA graph of many calls over rotating inputs that together exceed L2 four times (as far
as 4 GiB go), median of replays. Host time: wall time of an eager call without waiting for the device.
Bytes: input + data + scales. Copy is the faster of ``copy_`` and a Triton copy kernel moving as many
bytes. Prints a table and a summary against the targets; writes gpu.json and gpu.png to DIR. The measuring
is that of ``mxfp8_ops.benchmark``.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

from mxfp8_ops import dispatch
from mxfp8_ops.benchmark import report
from mxfp8_ops.benchmark.measure import Run, measure_shape, shapes_for
from mxfp8_ops.cli import machine


def summary(rows: list[dict[str, Any]], backends: list[str]) -> None:
    """Compact: what the targets of an H200 ask for, worst variant first."""
    print("\nsummary (minimum over layouts, modes and types of what was measured)")
    for backend in backends:
        own = [r for r in rows if r["backend"] == backend and "us" in r]
        failed = [r for r in rows if r["backend"] == backend and "error" in r]
        for shape, target in (("16384x16384", 1.0), ("8192x8192", 0.97), ("512x7168", 0.9)):
            found = [r for r in own if r["shape"] == shape and r["what"] == "quantize"]
            if found:
                worst = min(found, key=lambda r: r["of_copy"])
                best = max(r["of_copy"] for r in found)
                which = f"{worst.get('input_dtype')} {worst.get('scale_layout', 'linear')}"
                print(
                    f"{backend:9} {shape:12} {worst['of_copy']:.3f} to {best:.3f} "
                    f"(target {target}) {which}"
                )
        for shape, limit in (("1x4096", 1.9), ("128x7168", 3.0)):
            found = [r for r in own if r["shape"] == shape and r["what"] == "quantize"]
            if found:
                text = ", ".join(f"{r.get('scale_layout')} {r['us']:.2f}" for r in found)
                print(f"{backend:9} {shape:12} us: {text} (limit {limit})")
        for what, target in (
            ("dequantize", 0.98),
            ("quantize_columnwise", 0.9),
            ("quantize_both", 0.9),
        ):
            found = [r for r in own if r["shape"] == "8192x8192" and r["what"] == what]
            text = ", ".join(f"{r.get('scale_layout', 'linear')} {r['of_copy']:.3f}" for r in found)
            if found:
                print(f"{backend:9} {what} 8192x8192: {text} (target {target})")
        for r in failed[:3]:
            print(f"{backend:9} FAILED {r['what']} {r['shape']}: {r['error'][:100]}")
    for row in rows:
        if row["shape"] == "1x4096" and "host_us" in row:
            layout = row.get("scale_layout", "linear")
            print(f"host 1x4096 {row['backend']} {layout}: {row['host_us']:.1f} us")
    for shape in dict.fromkeys(r["shape"] for r in rows):
        others = [
            f"{r['backend']} {r['us']:.2f}"
            for r in rows
            if r["shape"] == shape
            and report.is_plain(r)
            and r.get("scale_layout", "linear") == "linear"
        ]
        print(f"{shape:>12} us: {', '.join(others)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the target shapes, without peers")
    parser.add_argument("--shapes", help="comma-separated, like 1x4096,8192x8192")
    parser.add_argument("--backends", help="comma-separated; default: all that are available")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type not in ("cuda", "xpu"):
        print("this benchmark needs a CUDA, ROCm or XPU device, and torch sees none")
        return 1
    device = torch.device(accelerator.type, torch.accelerator.current_device_index())
    backends = []
    wanted = (
        options.backends.split(",") if options.backends else ["triton", "cuda", "cute_dsl", "xpu"]
    )
    for name in wanted:
        reason = dispatch.unavailable_reason(dispatch.backend_named(name), device)
        if reason is None:
            backends.append(name)
        else:
            print(f"backend {name} left out: {reason}")
    shapes = options.shapes.split(",") if options.shapes else shapes_for(device, options.quick)
    run = Run(0.02 if options.quick else 0.04, device)
    started = time.time()
    for shape in shapes:
        measure_shape(run, shape, backends, others=not options.quick)
    summary(run.rows, backends)
    record = report.record(machine.device_name(device), time.time() - started, run.rows)
    report.write(options.output / "gpu.json", record)
    print(f"{record['seconds']} s, {record['device']}, torch {record['torch']}, {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
