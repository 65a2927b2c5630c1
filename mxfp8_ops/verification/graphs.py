"""Fakes, torch.compile, CUDA graphs and large tensors: checks that are more than one call."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from ..backends import Backend
from .cases import Case
from .compare import Comparison, Difference
from .subject import NotApplicable, Subject

LARGE_LAYOUTS = ("linear", "swizzled_8x4")  # of 1 and 8 rows a tile
_LARGE_ROWS, _LARGE_COLUMNS = (1 << 16) + 8, 1 << 15


@dataclass(frozen=True)
class Step:
    """A check of its own: ``function(subject)`` compares and returns."""

    label: str
    function: Callable[[Subject], Comparison]


def _normal(rows: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator).to(torch.bfloat16)


def fake_step(case: Case) -> Step:
    """The fake of ``case`` has the shape, stride, dtype and device of the real result."""

    def compare(subject: Subject) -> Comparison:
        op = subject.op(case.operation)
        args = case.arguments(subject.device)
        subject.serving(case.operation, args, case.options)
        real = op(*args, **case.options)
        with FakeTensorMode() as mode:
            arguments = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
            fake = op(*arguments, **case.options)
        described = [_describe(real), _describe(fake)]
        if described[0] == described[1]:
            return Comparison(0)
        return Comparison(0, 0, Difference(f"fake is {described[1]}, the real is {described[0]}"))

    return Step(f"fake of {case.label}", compare)


def _describe(result: Any) -> list[Any]:
    outputs = (result,) if isinstance(result, torch.Tensor) else result
    return [(tuple(o.shape), o.stride(), str(o.dtype), str(o.device)) for o in outputs]


@functools.cache
def compile_error(device: torch.device) -> str | None:
    """Why torch.compile does not work on ``device`` at all, with no op of ours, or None."""
    torch._dynamo.reset()
    try:
        torch.compile(lambda x: x.relu() + 1, fullgraph=True)(torch.ones(8, device=device))
    except Exception as error:  # no compiler, no Triton, or one that does not work
        text = " ".join(str(error).split())
        return f"torch.compile itself fails here: {type(error).__name__}: {text[:200]}"
    return None


def compile_step(layout: str, dynamic: bool, row_counts: tuple[int, ...]) -> Step:
    """``torch.compile(fullgraph=True)`` with consumers in the graph gives the bytes of the reference."""

    def compare(subject: Subject) -> Comparison:
        reason = compile_error(subject.device)
        if reason is not None:
            raise NotApplicable(reason)
        op = subject.op("quantize")
        back = _op_or_none(subject, "dequantize")

        def round_trip(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            data, scale = op(x * 2, scale_layout=layout)
            if back is None:
                return data, scale
            return data, scale, back(data, scale, scale_layout=layout) * 2

        torch._dynamo.reset()
        compiled = torch.compile(round_trip, fullgraph=True, dynamic=dynamic)
        found = Comparison(0)
        for rows in row_counts:
            x = _normal(rows, 96, rows)
            case = Case("quantize", (x * 2,), {"scale_layout": layout})
            args = case.arguments(subject.device)
            backend = subject.serving("quantize", args, case.options)
            results = compiled(x.to(subject.device))
            found = _add(found, subject.compare_result(case, results[:2], case.expected, backend))
            if back is not None:
                # Of the bytes that came out, which may be those of a documented deviation.
                stored = tuple(t.cpu() for t in results[:2])
                again = Case("dequantize", stored, {"scale_layout": layout})
                halves = results[2] / 2
                part = subject.compare_result(again, halves, again.expected, backend)
                found = _add(found, part)
        return found

    kind = "dynamic shapes" if dynamic else "static shapes"
    return Step(f"torch.compile(fullgraph), {kind}, {layout}, rows {list(row_counts)}", compare)


def _op_or_none(subject: Subject, operation: str) -> Any:
    try:
        return subject.op(operation)
    except NotApplicable:
        return None


def _add(a: Comparison, b: Comparison) -> Comparison:
    return Comparison(a.blocks + b.blocks, a.deviating + b.deviating, a.difference or b.difference)


def cuda_graph_step(layout: str) -> Step:
    """A captured call, replayed with changed input, writes every byte again."""

    def compare(subject: Subject) -> Comparison:
        if subject.device.type != "cuda":
            raise NotApplicable(f"there are no CUDA graphs on {subject.device}")
        op = subject.op("quantize")
        options = {"scale_layout": layout}
        found = Comparison(0)
        with torch.cuda.device(subject.device):
            x = _normal(200, 512, 0).to(subject.device)
            backend: Backend = subject.serving("quantize", (x,), options)
            op(x, **options)  # what compiles on first use cannot do so during a capture
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outputs = op(x, **options)
            for seed in range(3):
                case = Case("quantize", (_normal(200, 512, seed),), options)
                x.copy_(case.tensors[0])
                for output in outputs:
                    output.view(torch.uint8).fill_(0xFF)
                graph.replay()
                torch.cuda.synchronize()
                part = subject.compare_result(case, outputs, case.expected, backend)
                found = _add(found, part)
        return found

    return Step(f"CUDA graph, {layout}", compare)


def large_step(layout: str) -> Step:
    """More than 2**31 elements: the last rows are right, so offsets have 64 bits."""

    def compare(subject: Subject) -> Comparison:
        _require_memory(subject.device)
        op = subject.op("quantize")
        options = {"scale_layout": layout}
        shape = (_LARGE_ROWS, _LARGE_COLUMNS)
        meta = torch.empty(shape, dtype=torch.bfloat16, device="meta")
        backend = subject.serving("quantize", (meta,), options)
        if backend.name == "torch":
            raise NotApplicable("the reference needs several times the memory of its input")
        tail = Case("quantize", (_normal(8, _LARGE_COLUMNS, 0),), options)
        x = torch.zeros(shape, dtype=torch.bfloat16, device=subject.device)
        x[-8:].copy_(tail.tensors[0])
        data, scale = op(x, **options)
        # 8 rows are one row of tiles in two of the layouts.
        results = data[-8:].clone(), scale[-8:].clone()
        return subject.compare_result(tail, results, tail.expected, backend)

    return Step(f"{_LARGE_ROWS} x {_LARGE_COLUMNS}, {layout}", compare)


def _require_memory(device: torch.device) -> None:
    """Input and outputs are 6.5 GiB."""
    needed = 8 << 30
    if device.type == "cpu":
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    elif device.type in ("cuda", "xpu"):
        try:
            free = getattr(torch, device.type).mem_get_info(device)[0]
        except RuntimeError:  # integrated GPUs of Intel
            raise NotApplicable(f"free memory of {device} is not known") from None
    else:
        raise NotApplicable(f"free memory of {device} is not known")
    if free < needed:
        raise NotApplicable(f"it needs 8 GiB of free memory, {device} has {free / 2**30:.1f}")
