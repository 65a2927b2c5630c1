"""``mxfp8-ops info``: this machine, and which backend serves it or why not."""

from __future__ import annotations

import argparse
from typing import Any

from . import machine
from .output import print_json, print_table


def add_parser(subparsers: Any) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "info",
        help="show this machine, the versions and every backend",
        description=(
            "Show the platform, the versions, every backend of every device with 'available' or the "
            "reason, the order of choice and the known deviations. It works whatever is broken."
        ),
    )
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what ``machine.describe`` finds; the exit code is 0."""
    description = machine.describe()
    if args.json:
        print_json(description)
    else:
        _print(description)
    return 0


def _print(description: dict[str, Any]) -> None:
    facts = [(name, str(value)) for name, value in description["platform"].items()]
    facts += [(name, str(value)) for name, value in description["torch"].items()]
    print_table("Platform", ("what", "value"), facts)
    print_table(
        "Packages",
        ("package", "version"),
        [(name, v or "not installed") for name, v in description["packages"].items()],
    )
    print_table(
        "Devices",
        ("device", "name", "details"),
        [
            (d["device"], d["name"], ", ".join(f"{k} {v}" for k, v in d["details"].items()))
            for d in description["devices"]
        ],
    )
    print_table(
        "Native libraries",
        ("library", "state"),
        [(name, reason or "loaded") for name, reason in description["native_libraries"].items()],
    )
    print_table(
        "Backends, best first",
        ("device", "backend", "state"),
        [
            (b["device"], b["name"], b["reason"] or "available" + ", chosen" * b["chosen"])
            for b in description["backends"]
        ],
    )
    print_table(
        "Who serves what",
        ("device", "operation", "order"),
        [
            (device, operation, names if isinstance(names, str) else ", ".join(names))
            for device, operations in description["routes"].items()
            for operation, names in operations.items()
        ],
    )
    print_table(
        "Known deviations from docs/numerics.md",
        ("backend", "deviation"),
        list(description["deviations"].items()),
    )
    if description["environment"]:
        print_table("Environment", ("variable", "value"), list(description["environment"].items()))
    for note in description["notes"]:
        print(f"note: {note}")
