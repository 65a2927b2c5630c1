"""``mxfp8-ops verify``: every backend of this machine against the reference, byte by byte."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .. import dispatch, platform
from ..verification import runner
from ..verification.runner import Result
from ..verification.subject import DISPATCHER, Subject, subjects
from . import machine
from .output import UsageError, parse_device, print_json, print_table, progress

_DEFAULT_REPORT = "mxfp8-ops-verify.json"


def add_parser(subparsers: Any) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "verify",
        help="compare every backend of this machine with the reference, byte by byte",
        description=(
            "Run every available backend of every device on this machine and compare each byte with the "
            "reference on the CPU. Exit code 1 on any difference outside the documented deviations."
        ),
        epilog="A failure writes a report to attach to a bug report.",
    )
    parser.add_argument(
        "--device", action="append", help="only this device, like cpu or cuda:0; may be repeated"
    )
    parser.add_argument(
        "--backend",
        action="append",
        help=f"only this backend, or '{DISPATCHER}' for the automatic choice; may be repeated",
    )
    parser.add_argument("--quick", action="store_true", help="fewer blocks and compiled graphs")
    parser.add_argument(
        "--large", action="store_true", help="also a tensor of more than 2**31 elements: 8 GiB"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random blocks (0)")
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help=f"write the JSON report there; after a failure {_DEFAULT_REPORT} is written anyway",
    )
    parser.add_argument("--json", action="store_true", help="print the report instead of tables")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Verify; 0 if every byte is right, 1 if not or if nothing could be verified."""
    devices = list(dict.fromkeys(parse_device(text) for text in args.device or ()))
    devices = devices or list(platform.devices())
    names = args.backend
    for name in names or ():
        if name != DISPATCHER and name not in dispatch.BACKENDS:
            valid = ", ".join([*dispatch.BACKENDS, DISPATCHER])
            raise UsageError(f"--backend must be one of {valid}, got {name!r}")
    if args.report is not None and not args.report.resolve().parent.is_dir():
        raise UsageError(f"--report must be in an existing folder, got {args.report}")
    if not 0 <= args.seed < 1 << 32:
        raise UsageError(f"--seed must be 0 to 2**32 - 1, got {args.seed}")
    with _quiet_log():
        found, left_out = subjects(devices, names)
        checks = runner.make_checks(args.quick, args.large, args.seed)
        with progress("verify", len(found) * sum(len(c.steps) for c in checks)) as report:
            results = runner.run(found, checks, report)
    failed = sum(r.failed for r in results)
    # Under a name that cannot be served anywhere, no difference would prove nothing.
    missing = [n for n in names or () if not any(s.name == n for s in found)]
    passed = bool(found) and not failed and not missing
    record = {
        "passed": passed,
        "machine": machine.describe(),
        "options": {"quick": args.quick, "large": args.large, "seed": args.seed},
        "left_out": [{"device": str(d), "backend": b, "reason": r} for d, b, r in left_out],
        "results": [r.as_json() for r in results],
    }
    if args.json:
        print_json(record)
    else:
        _print(found, results, left_out)
    path = args.report
    if path is None and not passed:
        path = Path(_DEFAULT_REPORT)
    if path is not None:
        path = _write(path, json.dumps(record, indent=1) + "\n")
    if not args.json:
        done, blocks = sum(r.done for r in results), sum(r.blocks for r in results)
        if missing:
            print(f"FAILED: not available on any of the devices: {', '.join(missing)}")
        what = (
            f"{done} comparisons of {blocks} blocks, {len(found)} backend{'s' * (len(found) != 1)}"
        )
        if failed:
            print(f"FAILED: {failed} of {what}")
        elif found:
            print(f"{what}: no difference")
        if path is not None:
            print(f"report: {path}" + ("" if passed else " (attach it to a bug report)"))
    return 0 if passed else 1


@contextlib.contextmanager
def _quiet_log() -> Iterator[None]:
    """The results say which backends are left out and which fail."""
    log = logging.getLogger("mxfp8_ops")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _write(path: Path, text: str) -> Path:
    try:
        path.write_text(text)
    except OSError:  # the current folder may not be writable
        path = Path(tempfile.gettempdir()) / path.name
        path.write_text(text)
    return path


def _print(
    found: list[Subject], results: list[Result], left_out: list[tuple[torch.device, str, str]]
) -> None:
    for device in dict.fromkeys(s.device for s in found):
        own = [r for r in results if r.device == str(device)]
        names = list(dict.fromkeys(r.backend for r in own))
        cells = {(r.check, r.backend): _cell(r) for r in own}
        rows = [
            (check, *(cells[check, name] for name in names))
            for check in dict.fromkeys(r.check for r in own)
        ]
        seconds = [f"{sum(r.seconds for r in own if r.backend == name):.1f} s" for name in names]
        title = f"{device}: comparisons ('-': nothing to compare)"
        print_table(title, ("check", *names), [*rows, ("time", *seconds)])
    for target, name, reason in left_out:
        print(f"left out: {target} {name}: {reason}")
    skipped = [(r.device, r.backend, reason) for r in results for reason in r.skipped]
    for target_name, name, reason in dict.fromkeys(skipped):
        if "torch.compile" in reason or "does not answer" in reason or "memory" in reason:
            print(f"not run: {target_name} {name}: {reason}")
    for subject in found:
        own = [r for r in results if (r.device, r.backend) == (str(subject.device), subject.name)]
        deviating = sum(r.deviating for r in own)
        if deviating:
            print(
                f"{subject.device} {subject.name}: {deviating} blocks differ as docs/numerics.md says"
            )
    for result in results:
        for failure in result.failures[:1]:
            _print_failure(result, failure)


def _cell(result: Result) -> str:
    if result.failed:
        return f"FAILED {result.failed} of {result.done}"
    return f"ok {result.done}" if result.done else "-"


def _print_failure(result: Result, failure: dict[str, Any]) -> None:
    print(f"\nFAILED: {result.device} {result.backend}, {result.check}")
    print(f"  call: {failure['call']}")
    if "exception" in failure:
        print(f"  exception: {failure['exception']}")
        return
    for name, value in failure["difference"].items():
        text = " ".join(value) if isinstance(value, list) else value
        print(f"  {'first difference' if name == 'what' else name}: {text}")
