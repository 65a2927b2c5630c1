"""Runs every check on every subject and keeps what was found; a failure never stops the run."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from ..errors import is_lost_device
from . import cases, graphs
from .cases import Case
from .compare import Comparison
from .graphs import Step
from .subject import NotApplicable, Subject

KEPT_FAILURES = 3
"""Failures of one check on one subject that are described; the rest are counted."""


@dataclass(frozen=True)
class Check:
    """A named list of comparisons."""

    name: str
    description: str
    steps: tuple[Case | Step, ...]


@dataclass
class Result:
    """What one check found on one subject.

    Attributes:
        done: comparisons that were made.
        blocks: blocks that were compared.
        deviating: blocks that differ as documented for the backend.
        skipped: reason to number, of comparisons that were not made.
        failed: comparisons with a difference or an exception.
        failures: the first of them, described.
    """

    device: str
    backend: str
    check: str
    done: int = 0
    blocks: int = 0
    deviating: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    failed: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """The fields, in values that JSON knows."""
        return asdict(self)


def make_checks(quick: bool = False, large: bool = False, seed: int = 0) -> list[Check]:
    """All checks.

    Args:
        quick: fewer random blocks, one layout compiled.
        large: also quantize a tensor of more than 2**31 elements, which needs 8 GiB.
        seed: of the random numbers.
    """
    data_checks: tuple[tuple[str, Callable[[bool, int], Iterator[Case]]], ...] = (
        ("adversarial blocks", cases.adversarial),
        ("16-bit patterns", cases.patterns),
        ("random bits", cases.random_bits),
        ("shapes, alignment", cases.shapes),
        ("strides, offsets", cases.views),
        ("columnwise", cases.columnwise),
        ("both directions", cases.both),
        ("dequantize", cases.dequantize),
        ("swizzle, unswizzle", cases.layouts),
    )
    checks = [
        Check(name, (make.__doc__ or "").strip(), tuple(make(quick, seed)))
        for name, make in data_checks
    ]
    by_operation: dict[str, list[Case]] = {}
    for check in checks[3:]:  # the small ones
        for case in check.steps:
            if isinstance(case, Case):
                by_operation.setdefault(case.operation, []).append(case)
    per_operation = 4 if quick else 16
    chosen = [c for own in by_operation.values() for c in own[:: -(-len(own) // per_operation)]]
    checks.append(
        Check(
            "fake against real",
            "Fakes have the shapes, strides, types and device of the results.",
            tuple(graphs.fake_step(case) for case in chosen),
        )
    )
    layouts = cases.LAYOUTS[1:2] if quick else cases.LAYOUTS
    compiled = [graphs.compile_step(layout, False, (7,)) for layout in layouts]
    compiled += [graphs.compile_step(layout, True, (5, 7, 130)) for layout in layouts[:1]]
    checks.append(
        Check("torch.compile", "Inductor with fullgraph, static and dynamic.", tuple(compiled))
    )
    checks.append(
        Check(
            "CUDA graphs",
            "Captured once, replayed with changed input.",
            tuple(graphs.cuda_graph_step(layout) for layout in cases.LAYOUTS),
        )
    )
    if large:
        steps = tuple(graphs.large_step(layout) for layout in graphs.LARGE_LAYOUTS)
        checks.append(Check("64-bit offsets", "More than 2**31 elements.", steps))
    return checks


def run(
    subjects: Sequence[Subject], checks: Sequence[Check], report: Callable[[str], None]
) -> list[Result]:
    """Make every comparison.

    Args:
        subjects: what to verify.
        checks: from ``make_checks``.
        report: called with a description before each comparison.
    """
    results, lost = [], set[torch.device]()
    for subject in subjects:
        for check in checks:
            result = Result(str(subject.device), subject.name, check.name)
            results.append(result)
            started = time.perf_counter()
            for step in check.steps:
                report(f"{subject.device} {subject.name}: {check.name}")
                if subject.device in lost:
                    _skip(result, "the device does not answer after an earlier failure")
                elif not _attempt(subject, step, result):
                    lost.add(subject.device)
            result.seconds = round(time.perf_counter() - started, 3)
    return results


def _skip(result: Result, reason: str) -> None:
    result.skipped[reason] = result.skipped.get(reason, 0) + 1


def _attempt(subject: Subject, step: Case | Step, result: Result) -> bool:
    """Make one comparison; False if the device cannot be used any more."""
    try:
        if isinstance(step, Case):
            found: Comparison = subject.compare(step)
        else:
            found = step.function(subject)
    except NotApplicable as reason:
        _skip(result, str(reason))
        return True
    except Exception as error:  # whatever a backend does is a result
        result.done += 1
        _fail(
            result,
            {
                "call": step.label,
                "exception": f"{type(error).__name__}: {error}",
                "traceback": traceback.format_exc().splitlines()[-30:],
            },
        )
        return not is_lost_device(error)
    result.done += 1
    result.blocks += found.blocks
    result.deviating += found.deviating
    if found.difference is not None:
        difference = {"what": found.difference.what, **found.difference.details}
        _fail(result, {"call": step.label, "difference": difference})
    return True


def _fail(result: Result, failure: dict[str, Any]) -> None:
    result.failed += 1
    if len(result.failures) < KEPT_FAILURES:
        result.failures.append(failure)
