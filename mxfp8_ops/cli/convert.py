"""``mxfp8-ops convert``: checkpoints to MXFP8, in formats that serving engines load."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from threading import Lock
from typing import Any

from .. import dispatch, formats
from ..checkpoint import CheckedTensor, CheckpointError, Options, Plan, check, convert, make_plan
from ..checkpoint.checker import READERS
from ..checkpoint.converter import output_bytes
from ..checkpoint.ranks import is_first
from ..checkpoint.report import plot
from ..checkpoint.select import DEFAULT_EXCLUDE
from ..checkpoint.source import TensorInfo
from ..checkpoint.targets import TARGETS
from ..checkpoint.writer import item_size
from .output import UsageError, parse_device, print_json, print_table, progress

_WORST = 10


def add_parser(subparsers: Any) -> None:
    """Add the subcommand to the command line."""
    formats_help = "; ".join(f"{t.name}: {t.readers}" for t in TARGETS.values())
    parser = subparsers.add_parser(
        "convert",
        help="quantize a checkpoint, or check one that was",
        description=(
            "Quantize the weight matrices of a safetensors file or a Hugging Face model folder to MXFP8, "
            "tensor by tensor. Interrupted, the same command goes on where it stopped. Started by "
            "torchrun, the files are spread over its processes. With --check, read a result back with the "
            "package compressed-tensors and compare it with the original."
        ),
        epilog=f"Left as they are unless --no-default-exclude: {', '.join(DEFAULT_EXCLUDE)}.",
    )
    parser.add_argument("input", type=Path, metavar="IN", help="file or folder; with --check: OUT")
    parser.add_argument(
        "output", type=Path, metavar="OUT", nargs="?", help="result; with --check: the original"
    )
    parser.add_argument("--check", action="store_true", help="check OUT: convert --check OUT [IN]")
    parser.add_argument("--reader", choices=READERS, default=READERS[0], help="of --check")
    parser.add_argument(
        "--format", choices=tuple(TARGETS), default="compressed-tensors", help=formats_help
    )
    pattern = {"action": "append", "default": [], "metavar": "PATTERN"}
    parser.add_argument("--include", **pattern, help="quantize only modules like this; repeatable")
    parser.add_argument("--exclude", **pattern, help="leave modules like this; repeatable")
    parser.add_argument("--no-default-exclude", action="store_true", help="exclude nothing unasked")
    parser.add_argument("--scaling-mode", choices=formats.SCALING_MODES, default="rceil")
    parser.add_argument("--device", default="cpu", help="like cpu or cuda:0 (cpu)")
    parser.add_argument("--backend", help="a backend by name; default: the best of the device")
    parser.add_argument(
        "--jobs", type=int, default=1, help="files at once, each with its memory (1)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list what would be done; write nothing"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what OUT holds")
    parser.add_argument(
        "--report", type=Path, metavar="DIR", help="plot of the noise as snr.png there"
    )
    parser.add_argument("--json", action="store_true", help="print the report instead of tables")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Convert or check; 0, or 1 if that failed."""
    try:
        if args.check:
            return _check(args)
        if args.output is None:
            raise UsageError("OUT is missing: convert IN OUT")
        try:
            options = _options(args)
        except ValueError as error:
            raise UsageError(str(error)) from None
        return _dry_run(args, options) if args.dry_run else _convert(args, options)
    except CheckpointError as error:
        print(f"mxfp8-ops convert: {error}", file=sys.stderr)
        return 1


def _options(args: argparse.Namespace) -> Options:
    device = parse_device(args.device)
    if args.backend is not None:
        reason = dispatch.unavailable_reason(
            dispatch.backend_named(args.backend, "--backend"), device
        )
        if reason is not None:
            raise UsageError(f"--backend {args.backend} cannot be used on {device}: {reason}")
    return Options(
        target=args.format,
        include=tuple(args.include),
        exclude=tuple(args.exclude),
        default_exclude=not args.no_default_exclude,
        scaling_mode=args.scaling_mode,
        device=str(device),
        backend=args.backend,
        jobs=args.jobs,
    )


def _dry_run(args: argparse.Namespace, options: Options) -> int:
    plan = make_plan(args.input, options)
    if args.json:
        rows = [
            {"file": file, "name": i.name, "dtype": i.dtype, "shape": i.shape, "reason": reason}
            for file, i, reason in plan.tensors()
        ]
        print_json({"tensors": rows, "ignored": plan.ignored(), "warnings": plan.warnings()})
        return 0
    table = [
        (i.name, i.dtype, " x ".join(map(str, i.shape)), "quantized" if why is None else why)
        for _, i, why in plan.tensors()
    ]
    print_table(f"{args.input}: nothing is written", ("tensor", "type", "shape", "decision"), table)
    _print_warnings(plan.warnings())
    print(_summary(plan))
    return 0


def _convert(args: argparse.Namespace, options: Options) -> int:
    plan = make_plan(args.input, options)
    lock = Lock()
    with progress("convert", sum(1 for _ in plan.tensors())) as step:

        def report_step(file: str, info: TensorInfo) -> None:
            with lock:
                step(info.name)

        report = convert(
            args.input, args.output, options, overwrite=args.overwrite, progress=report_step
        )
    if not is_first():
        return 0
    if args.report is not None:
        try:
            args.report.mkdir(parents=True, exist_ok=True)
            plot(report, args.report / "snr.png")
        except OSError as error:
            raise CheckpointError(f"the plot cannot be written to {args.report}: {error}") from None
    if args.json:
        print_json(report)
        return 0
    _print_worst(report["tensors"])
    _print_warnings(report["warnings"])
    bad = [r for r in report["tensors"] if r["not_finite_blocks"]]
    for row in bad:
        print(
            f"warning: {row['name']} has {row['not_finite_blocks']} blocks with a NaN or an infinity, "
            "which became NaN"
        )
    print(f"{_summary(plan)}\nwritten: {args.output}")
    return 0


def _summary(plan: Plan) -> str:
    rows = list(plan.tensors())
    quantized = sum(reason is None for _, _, reason in rows)
    before = sum(i.numel * item_size(i) for _, i, _ in rows)
    after = sum(output_bytes(i, reason) for _, i, reason in rows)
    return (
        f"{quantized} of {len(rows)} tensors quantized, {len(rows) - quantized} copied: "
        f"{before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after"
    )


def _print_worst(tensors: list[dict[str, Any]]) -> None:
    rows = sorted(
        (r for r in tensors if r["snr_db"] is not None), key=lambda r: (r["snr_db"], r["name"])
    )
    table = [
        (r["name"], r["dtype"], " x ".join(map(str, r["shape"])), f"{r['snr_db']:.2f}")
        for r in rows[:_WORST]
    ]
    title = f"the {len(table)} noisiest of {len(rows)} tensors"
    print_table(title, ("tensor", "type", "shape", "signal to noise, dB"), table)


def _print_warnings(warnings: list[str]) -> None:
    for warning in warnings:
        print(f"warning: {warning}")


def _check(args: argparse.Namespace) -> int:
    rows = check(args.input, args.output, args.reader)
    bad = [row for row in rows if not row.is_good]
    if args.json:
        print_json([vars(row) for row in rows])
        return 1 if bad else 0
    _print_checked(bad or sorted(rows, key=lambda r: r.snr_db or 0.0)[:_WORST])
    verdict = (
        "all within the rounding of MXFP8" if not bad else f"{len(bad)} are not as they should be"
    )
    print(f"{len(rows)} tensors read with {args.reader}: {verdict}")
    return 1 if bad else 0


def _print_checked(rows: list[CheckedTensor]) -> None:
    table = [
        (
            row.name,
            "" if row.snr_db is None else f"{row.snr_db:.2f}",
            row.problem or (f"{row.outside} elements too far away" if row.outside else "good"),
        )
        for row in rows
    ]
    print_table("tensors", ("tensor", "signal to noise, dB", "state"), table)
