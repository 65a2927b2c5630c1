"""Calls with their inputs and the results of the reference on the CPU."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import reference, testing
from ..formats import (
    BLOCK_SIZE,
    ELEMENT_FORMATS,
    INPUT_DTYPES,
    OUTPUT_DTYPES,
    SCALE_DTYPE,
    SCALE_LAYOUTS,
    SCALING_MODES,
)

LAYOUTS = tuple(SCALE_LAYOUTS)
ELEMENTS = tuple(ELEMENT_FORMATS)


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


@dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        operation: name of the operation.
        tensors: its tensor arguments, on the CPU.
        options: its keyword arguments.
        view: applied to the first tensor on the device, so that strides and offsets are those of a view.
        extra: positional arguments after the tensors.
        linear: the same call with linear scales, whose result gives that of a swizzled layout.
    """

    operation: str
    tensors: tuple[torch.Tensor, ...]
    options: dict[str, Any] = field(default_factory=dict)
    view: Callable[[torch.Tensor], torch.Tensor] = _same
    extra: tuple[Any, ...] = ()
    linear: Case | None = None
    note: str = ""

    @property
    def label(self) -> str:
        """The call in words."""
        x = self.view(self.tensors[0])
        parts = [self.operation, str(x.dtype).removeprefix("torch."), str(list(x.shape)), self.note]
        parts += [str(e) for e in self.extra]
        parts += [f"{k}={str(v).removeprefix('torch.')}" for k, v in self.options.items()]
        return " ".join(p for p in parts if p)

    def arguments(self, device: torch.device) -> tuple[Any, ...]:
        """The positional arguments on ``device``."""
        # As bytes: not every device copies FP8 tensors.
        moved = [t.view(torch.uint8).to(device).view(t.dtype) for t in self.tensors]
        return (self.view(moved[0]), *moved[1:], *self.extra)

    @functools.cached_property
    def expected(self) -> tuple[torch.Tensor, ...]:
        """What the reference returns on the CPU; computed once, for every backend."""
        if self.linear is not None:
            data, scale = self.linear.expected
            return data, reference.swizzle_scale(scale, self.options["scale_layout"])
        function = getattr(reference, self.operation)
        result = function(*self.arguments(torch.device("cpu")), **self.options)
        return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def in_all_layouts(x: torch.Tensor, options: dict[str, Any], note: str = "") -> Iterator[Case]:
    """``quantize`` of x in every scale layout."""
    linear = Case("quantize", (x,), {**options, "scale_layout": "linear"}, note=note)
    yield linear
    for layout in LAYOUTS[1:]:
        yield Case("quantize", (x,), {**options, "scale_layout": layout}, linear=linear, note=note)


_VARIANTS: tuple[dict[str, Any], ...] = tuple(
    {"dtype": element, "scaling_mode": mode}
    for element, mode in itertools.product(ELEMENTS, SCALING_MODES)
)


def _rows(blocks: torch.Tensor, columns: int) -> torch.Tensor:
    count = blocks.shape[0] // columns * columns
    return blocks[:count].reshape(-1, columns * BLOCK_SIZE)


def adversarial(quick: bool, seed: int) -> Iterator[Case]:
    """Zeros, ties, subnormals, non-finite values, both sides of every scale boundary."""
    for input_dtype in INPUT_DTYPES:
        blocks = testing.adversarial_blocks(input_dtype, 64 if quick else 1024, seed)
        for options in _VARIANTS:
            yield from in_all_layouts(_rows(blocks, 5), options)


def patterns(quick: bool, seed: int) -> Iterator[Case]:
    """Every 16-bit pattern as an element, and as the first and largest element of a block."""
    for input_dtype in (torch.bfloat16, torch.float16):
        maxima = testing.all_patterns_as_maxima(input_dtype, seed)[:: 7 if quick else 1]
        blocks = torch.cat([testing.all_patterns(input_dtype), maxima])
        for options in _VARIANTS:
            yield Case("quantize", (_rows(blocks, 3),), options)


def random_bits(quick: bool, seed: int) -> Iterator[Case]:
    """Uniformly random bits."""
    for input_dtype in INPUT_DTYPES:
        blocks = testing.random_bits(input_dtype, 1 << (10 if quick else 14), seed + 1)
        for options in _VARIANTS:
            yield Case("quantize", (_rows(blocks, 4),), options)


def _normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Normal numbers of mixed size with a NaN now and then."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * 100
    x.view(-1)[5 :: 37 * BLOCK_SIZE] = float("nan")
    return x.to(dtype)


_SHAPES: tuple[tuple[tuple[int, ...], int | None], ...] = (
    ((1, 32), None),
    ((96,), None),
    ((3, 64), None),
    ((7, 4096), None),
    ((130, 96), None),
    ((257, 2880), None),
    ((512, 4096), None),
    ((2, 3, 150, 64), None),
    ((3, 40), 128),
    ((33,), 64),
    ((2, 9, 72), 32),
    ((129, 100), 96),
    ((5, 31), 32),
    ((0, 64), None),
    ((3, 0, 32), None),
    ((4, 0), None),
)


def shapes(quick: bool, seed: int) -> Iterator[Case]:
    """Ragged, batched, padded and empty shapes in every layout."""
    for (shape, alignment), input_dtype in itertools.product(_SHAPES, INPUT_DTYPES):
        if quick and torch.Size(shape).numel() > 1 << 17:
            continue
        x = _normal(shape, input_dtype, seed)
        yield from in_all_layouts(x, {"alignment": alignment} if alignment else {})


_VIEWS: tuple[tuple[str, tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("transposed", (96, 64), lambda x: x.t()),
    ("permuted", (64, 32, 3), lambda x: x.permute(2, 0, 1)),
    ("batches swapped", (2, 3, 64, 32), lambda x: x.transpose(0, 1)),
    ("every second column", (32, 192), lambda x: x[:, ::2]),
    ("every second row", (128, 64), lambda x: x[::2]),
    ("part of wider rows", (64, 160), lambda x: x[:, 32:96]),
    ("rows at odd offsets", (32, 99), lambda x: x[:, 1:97]),
    ("offset 1", (1 + 64 * 64,), lambda x: x[1:].view(64, 64)),
    ("offset 3", (3 + 64 * 96,), lambda x: x[3:].view(64, 96)),
    ("expanded rows", (1, 64), lambda x: x.expand(64, 64)),
    ("expanded batch", (32, 64), lambda x: x.expand(3, 32, 64)),
    ("part of a batch", (3, 96, 64), lambda x: x[:, 32:64]),
)


def views(quick: bool, seed: int) -> Iterator[Case]:
    """Strided, expanded and misaligned input of every quantizer."""
    for (note, shape, view), input_dtype in itertools.product(_VIEWS, INPUT_DTYPES):
        x = _normal(shape, input_dtype, seed)
        for operation in ("quantize", "quantize_columnwise", "quantize_both"):
            layouts = LAYOUTS if operation == "quantize" and not quick else LAYOUTS[:2]
            for layout in layouts:
                yield Case(operation, (x,), {"scale_layout": layout}, view, note=note)


def columnwise(quick: bool, seed: int) -> Iterator[Case]:
    """Blocks of 32 rows: every variant on adversarial values, every layout on ragged shapes."""
    yield from _transposed("quantize_columnwise", seed)


def both(quick: bool, seed: int) -> Iterator[Case]:
    """Both directions from one read."""
    yield from _transposed("quantize_both", seed)


def _transposed(operation: str, seed: int) -> Iterator[Case]:
    for input_dtype in INPUT_DTYPES:
        edges = testing.edge_blocks(input_dtype)
        edges = edges[: edges.shape[0] // BLOCK_SIZE * BLOCK_SIZE].t().contiguous()
        for options in _VARIANTS:
            yield Case(operation, (edges,), options)
    for input_dtype, layout in itertools.product(INPUT_DTYPES, LAYOUTS):
        for shape, alignment in (
            ((32, 32), None),
            ((160, 416), None),
            ((2, 96, 64), None),
            ((130, 100), 32),
            ((3, 33, 65), 128),
            ((0, 32), None),
        ):
            x = _normal(shape, input_dtype, seed)
            chosen: dict[str, Any] = {"scale_layout": layout, "alignment": alignment}
            if operation == "quantize_both":
                chosen["scale_layout_t"] = "swizzled_32_4_4"
            yield Case(operation, (x,), chosen)


def dequantize(quick: bool, seed: int) -> Iterator[Case]:
    """Every code under every scale byte, to every type from every layout; ragged shapes."""
    codes = torch.arange(256, dtype=torch.uint8)
    generator = torch.Generator().manual_seed(seed)
    for element, dtype, layout in itertools.product(ELEMENTS, OUTPUT_DTYPES, LAYOUTS):
        data = codes.repeat(256, 1).view(element)
        scale = codes.unsqueeze(1).repeat(1, 8).view(SCALE_DTYPE)
        yield _dequantize(data, scale, dtype, layout)
        for shape in ((1, 32), (96,), (130, 96), (2, 3, 33, 64), (0, 32)):
            data = torch.randint(0, 256, shape, generator=generator).to(torch.uint8).view(element)
            scale = torch.randint(
                0, 256, (*shape[:-1], shape[-1] // BLOCK_SIZE), generator=generator
            )
            yield _dequantize(data, scale.to(torch.uint8).view(SCALE_DTYPE), dtype, layout)


def _dequantize(data: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, layout: str) -> Case:
    stored = scale
    if layout != "linear":
        stored = reference.swizzle_scale(scale, layout)
    return Case("dequantize", (data, stored), {"dtype": dtype, "scale_layout": layout})


def layouts(quick: bool, seed: int) -> Iterator[Case]:
    """``swizzle_scale`` and ``unswizzle_scale`` of random scale bytes."""
    generator = torch.Generator().manual_seed(seed)
    for layout in LAYOUTS:
        for shape in ((5,), (1, 1), (3, 7), (130, 9), (2, 257, 12), (0, 4)):
            scale = torch.randint(0, 256, shape, generator=generator).to(torch.uint8)
            linear = scale.view(SCALE_DTYPE)
            yield Case("swizzle_scale", (linear,), extra=(layout,))
            if len(shape) > 1:
                tiles = reference.swizzle_scale(linear, layout)
                yield Case("unswizzle_scale", (tiles,), extra=(*shape[-2:], layout))
