"""One backend on one device, as it is verified."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import dispatch, reference
from ..backends import Backend
from ..ops import OPERATIONS
from . import deviations
from .cases import Case
from .compare import (
    Comparison,
    compare_attributes,
    compare_bytes,
    compare_dequantized,
    compare_quantized,
)

DISPATCHER = "dispatcher"
"""Name of the ops that choose a backend by themselves, verified like a backend."""


class NotApplicable(Exception):
    """A step that this backend or machine does not have; its text says why."""


@dataclass(frozen=True)
class Subject:
    """A backend, or the dispatcher, on a device."""

    device: torch.device
    name: str

    def op(self, operation: str) -> torch._ops.OpOverload:
        """The registered op; NotApplicable if this backend has none for ``operation``."""
        if self.name == DISPATCHER:
            return OPERATIONS[operation].op()
        if self.name not in OPERATIONS[operation].backends or (
            operation not in dispatch.BACKENDS[self.name].launchers
        ):
            raise NotApplicable(f"{self.name} has no {operation}")
        return OPERATIONS[operation].op(self.name)

    def serving(self, operation: str, args: Sequence[Any], options: dict[str, Any]) -> Backend:
        """The backend that serves the call; NotApplicable if a named one does not support it."""
        if self.name != DISPATCHER:
            candidates: tuple[Backend, ...] = (dispatch.BACKENDS[self.name],)
        else:
            candidates = dispatch.routes(operation, self.device)
        reason = None
        for backend in candidates:
            # Empty input never reaches a backend.
            if args[0].numel() == 0:
                return backend
            reason = backend.unsupported_reason(operation, *args, **options)
            if reason is None:
                return backend
        raise NotApplicable(f"{candidates[-1].name} does not support it: {reason}")

    def compare(self, case: Case) -> Comparison:
        """Run ``case`` and compare its result with the reference's."""
        op = self.op(case.operation)
        args = case.arguments(self.device)
        backend = self.serving(case.operation, args, case.options)
        expected = case.expected
        self.poison(expected)
        result = op(*args, **case.options)
        return self.compare_result(case, result, expected, backend)

    def compare_result(
        self, case: Case, result: Any, expected: Sequence[torch.Tensor], backend: Backend
    ) -> Comparison:
        """Compare what ``case`` returned, however it was called."""
        actual = (result,) if isinstance(result, torch.Tensor) else tuple(result)
        difference = compare_attributes(actual, expected, self.device)
        if difference is not None:
            return Comparison(0, 0, difference)
        x, *rest = case.arguments(torch.device("cpu"))
        layout = case.options.get("scale_layout", "linear")
        if case.operation == "dequantize":
            scale = rest[0]
            if layout != "linear":
                rows = x.shape[-2] if x.dim() > 1 else 1
                scale = reference.unswizzle_scale(scale, rows, x.shape[-1] // 32, layout)
            return compare_dequantized(actual[0], expected[0], x, scale)
        if case.operation in ("swizzle_scale", "unswizzle_scale"):
            return compare_bytes(actual[0], expected[0], "the scale")
        may_differ = functools.partial(deviations.may_differ, backend.name)
        found = Comparison(0)
        pairs = [(0, x, layout, "")]
        if case.operation == "quantize_columnwise":
            pairs = [(0, x.mT, layout, " of the transposed input")]
        elif case.operation == "quantize_both":
            layout_t = case.options.get("scale_layout_t") or layout
            pairs.append((2, x.mT, layout_t, " of the transposed input"))
        for i, values, scale_layout, where in pairs:
            part = compare_quantized(
                actual[i : i + 2], expected[i : i + 2], values, scale_layout, may_differ, where
            )
            found = Comparison(
                found.blocks + part.blocks,
                found.deviating + part.deviating,
                found.difference or part.difference,
            )
        return found

    def poison(self, outputs: Sequence[torch.Tensor]) -> None:
        """Leave 0xFF in the memory that the allocator will hand out, so that unwritten bytes show."""
        sizes = [output.numel() * output.element_size() for output in outputs]
        kept = [torch.full((n,), 0xFF, dtype=torch.uint8, device=self.device) for n in sizes]
        del kept


def subjects(
    devices: Sequence[torch.device], names: Sequence[str] | None
) -> tuple[list[Subject], list[tuple[torch.device, str, str]]]:
    """What can be verified, and ``(device, backend, reason)`` of what cannot.

    Args:
        devices: devices to look at.
        names: backends, or ``DISPATCHER``; None means all that belong to each device.
    """
    found, left_out = [], []
    for device in devices:
        wanted = names
        if wanted is None:
            order = dispatch.preference(device)
            # xpu_vllm is chosen by name only, and still has to do what its description says.
            others = [n for n in dispatch.BACKENDS if n not in order]
            others = [n for n in others if _reason(n, device) is None]
            wanted = [*order, *others, DISPATCHER]
        for name in wanted:
            reason = _reason(name, device)
            if reason is None:
                found.append(Subject(device, name))
            else:
                left_out.append((device, name, reason))
    return found, left_out


def _reason(name: str, device: torch.device) -> str | None:
    if name != DISPATCHER:
        return dispatch.unavailable_reason(dispatch.BACKENDS[name], device)
    return dispatch.served_by("quantize", device)[1]
