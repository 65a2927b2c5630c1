"""``mxfp8-ops bench``: bandwidth of every backend of a device against the best copy."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import torch

from .. import dispatch
from ..benchmark import measure, report, timing
from . import machine
from .output import UsageError, parse_device, print_json, print_table, progress

_DEFAULT_OUTPUT = "mxfp8-ops-bench"


def add_parser(subparsers: Any) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "bench",
        help="measure every backend of a device against the best copy",
        description=(
            "Measure every backend, the Inductor-compiled reference and importable peers (torchao, "
            "FlashInfer, TransformerEngine) against the best copy that moves as many bytes. Writes a JSON "
            "record and a plot of bandwidth over bytes moved. On GPUs of NVIDIA and AMD, times are replays "
            "of CUDA graphs over buffers larger than the cache; elsewhere they are wall times."
        ),
    )
    parser.add_argument("--device", help="like cpu or cuda:0; default: the accelerator, else cpu")
    parser.add_argument("--quick", action="store_true", help="fewer shapes, no peers")
    parser.add_argument("--shapes", help="comma-separated, like 1x4096,8192x8192")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help=f"folder for the record and the plot ({_DEFAULT_OUTPUT}; with --json none)",
    )
    parser.add_argument("--json", action="store_true", help="print the record instead of the table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure; 0, or 1 if a case raised."""
    device = _default_device() if args.device is None else parse_device(args.device)
    shapes = measure.shapes_for(device, args.quick)
    if args.shapes is not None:
        shapes = tuple(args.shapes.split(","))
    try:
        for shape in shapes:
            if timing.size_of(shape)[1] % 32 != 0:
                raise ValueError(f"columns must be a multiple of 32, got {shape}")
    except ValueError as error:
        raise UsageError(f"--shapes: {error}") from None
    backends = [
        name
        for name in dispatch.preference(device)
        # The reference is measured as "eager", in one layout: it is slow.
        if name != "torch" and dispatch.unavailable_reason(dispatch.BACKENDS[name], device) is None
    ]
    if device.type == "cpu":
        timing.keep_freed_memory()
    started = time.perf_counter()
    # Kernels of Triton, such as that of the copy, run on the current device.
    is_cpu = device.type == "cpu"
    current = contextlib.nullcontext() if is_cpu else torch.accelerator.device_index(device.index)
    with current, progress("bench", len(shapes)) as step:
        runner = measure.Run(0.02 if args.quick else 0.04, device, _quiet)
        for shape in shapes:
            step(shape)
            measure.measure_shape(runner, shape, backends, others=not args.quick)
    name = machine.device_name(device)
    record = report.record(name, time.perf_counter() - started, runner.rows)
    record |= {"threads": torch.get_num_threads(), "machine": machine.describe()}
    if args.json:
        print_json(record)
    else:
        _print(name, runner.rows)
    output = Path(_DEFAULT_OUTPUT) if args.output is None and not args.json else args.output
    if output is not None:
        path = output / f"{str(device).replace(':', '_')}.json"
        try:
            report.write(path, record, _quiet)
        except OSError as error:
            print(f"the record cannot be written to {path}: {error}", file=sys.stderr)
            return 1
        print(f"written: {path} and the plot next to it", file=sys.stderr)
    return 1 if any("error" in row for row in runner.rows) else 0


def _default_device() -> torch.device:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if accelerator is None else parse_device(accelerator.type)


def _quiet(text: str) -> None:
    """Lines of a measurement go to stderr, away from the table and from JSON."""
    print(text, file=sys.stderr, flush=True)


def _print(name: str, rows: list[dict[str, Any]]) -> None:
    hidden = {"what", "shape", "bytes", "backend", "us", "tb_s", "of_copy", "host_us", "error"}
    table = []
    for row in rows:
        options = " ".join(str(v).removeprefix("torch.") for k, v in row.items() if k not in hidden)
        figures = ["", "", row.get("error", "")[:60]]
        if "us" in row:
            figures = [f"{row['us']:.2f}", f"{row['tb_s'] * 1e3:.1f}", f"{row['of_copy']:.3f}"]
        table.append((row["shape"], row["what"], row["backend"], options, *figures))
    headers = ("shape", "operation", "backend", "options", "us", "GB/s", "of copy")
    print_table(f"{name}: bytes of input, data and scales", headers, table)
