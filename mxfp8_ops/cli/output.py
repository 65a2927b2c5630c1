"""Tables and progress, by rich where it is installed and in plain lines elsewhere."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

Report = Callable[[str], None]
"""Called with a description before each step of a long piece of work."""

_WIDTH_OF_FILES = 120
_SECONDS_BETWEEN_LINES = 5.0


class UsageError(ValueError):
    """The command line asks for something that does not exist; its text says what is allowed."""


def _rich(name: str) -> Any:
    """A module of rich, or None where it is missing or broken, whatever it raises."""
    import importlib

    try:
        return importlib.import_module(f"rich.{name}")
    except (Exception, SystemExit):
        return None


def _console(stream: Any) -> Any:
    console = _rich("console")
    if console is None:
        return None
    width = None if stream.isatty() else _WIDTH_OF_FILES
    return console.Console(file=stream, width=width, highlight=False, markup=False)


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print ``rows``, one string per header, on stdout."""
    console = _console(sys.stdout)
    if console is not None:
        text, table_module, box = _rich("text"), _rich("table"), _rich("box")
        table = table_module.Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for header in headers:
            table.add_column(header, overflow="fold")
        for row in rows:
            table.add_row(*(text.Text(cell) for cell in row))  # no markup: "[M, K]" is not a style
        console.print(f"\n{title}")
        console.print(table, end="")
        return
    widths = [max(len(r[i]) for r in [headers, *rows]) for i in range(len(headers))]
    print(f"\n{title}")
    for row in [headers, *rows]:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
    print()


def print_json(value: Any) -> None:
    """Print ``value`` on stdout as JSON."""
    print(json.dumps(value, indent=1))


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Report]:
    """A progress bar of ``total`` steps on stderr; plain lines, a few seconds apart, without a terminal."""
    module = _rich("progress")
    console = _console(sys.stderr)
    if module is None or console is None or not console.is_terminal:
        yield _plain_reports(what, total)
        return
    columns = (
        module.TextColumn("{task.description}", markup=False),
        module.BarColumn(),
        module.MofNCompleteColumn(),
        module.TimeElapsedColumn(),
    )
    with module.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        started = 0

        def report(step: str) -> None:
            nonlocal started
            bar.update(task, completed=started, description=f"{what}: {step}")
            started += 1

        yield report


def _plain_reports(what: str, total: int) -> Report:
    started, last = 0, float("-inf")

    def report(step: str) -> None:
        nonlocal started, last
        started += 1
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print(f"{what}: {started}/{total} {step}", file=sys.stderr, flush=True)

    return report


def parse_device(text: str) -> torch.device:
    """The device of a command line, with an index where its type has one; UsageError if there is none."""
    try:
        device = torch.device(text)
    except RuntimeError:
        raise UsageError(f"--device must be like 'cpu', 'cuda' or 'cuda:1', got {text!r}") from None
    if device.type == "cpu":
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != device.type:
        found = "none" if accelerator is None else f"{accelerator.type!r}"
        raise UsageError(f"--device {text} is not there: torch finds the accelerator {found}")
    count = torch.accelerator.device_count()
    index = torch.accelerator.current_device_index() if device.index is None else device.index
    if index >= count:
        raise UsageError(f"--device {text} is not there: torch finds {count} of type {device.type}")
    return torch.device(device.type, index)
