"""The command ``mxfp8-ops``, also ``python -m mxfp8_ops``.

Each subcommand is a module with ``add_parser(subparsers)`` and ``run(args) -> int``. Exit codes: 0 where all
is well, 1 for differences and failures, 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .. import __version__
from . import bench, convert, info, verify
from .output import UsageError

SUBCOMMANDS = (info, verify, bench, convert)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="mxfp8-ops",
        description="MXFP8 quantization for PyTorch: look at this machine, prove its bytes, measure it.",
        epilog="Exit codes: 0 ok, 1 differences or failure, 2 wrong usage.",
    )
    parser.add_argument("--version", action="version", version=f"mxfp8-ops {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for subcommand in SUBCOMMANDS:
        subcommand.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; None means those of the process.

    Returns:
        The exit code: 0, 1 or 2.
    """
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as stop:  # argparse has printed help, the version or what was wrong
        return stop.code if isinstance(stop.code, int) else 2
    try:
        code = args.run(args)
        sys.stdout.flush()
        return code
    except UsageError as error:
        print(f"mxfp8-ops {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"mxfp8-ops {args.command}: interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as head, has gone; nothing more can be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
