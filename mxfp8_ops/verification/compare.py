"""Results against expected results: the first difference, with the block that it is in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import reference
from ..formats import BLOCK_SIZE, SCALE_DTYPE

MayDiffer = Callable[[torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor | None]
"""``(values [n, 32], expected scale bytes [n], dtype)`` to the blocks that may differ, or None."""

_INTEGER = {2: torch.int16, 4: torch.int32}


@dataclass(frozen=True)
class Difference:
    """The first difference of a result. ``details`` has values that JSON knows, by name."""

    what: str
    details: dict[str, Any] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The difference as text, one fact a line."""
        found = [self.what]
        for name, value in self.details.items():
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            found.append(f"  {name}: {text}")
        return found


@dataclass(frozen=True)
class Comparison:
    """What was compared: blocks in all, those that differ as documented, the first other one."""

    blocks: int
    deviating: int = 0
    difference: Difference | None = None


def hex_bytes(tensor: torch.Tensor) -> str:
    """Bytes of ``tensor`` as text, in the order of the elements."""
    return bytes(tensor.contiguous().view(torch.uint8).flatten().tolist()).hex(" ")


def hex_words(tensor: torch.Tensor) -> list[str]:
    """Bit patterns of a tensor of 16- or 32-bit numbers."""
    size = tensor.element_size()
    words = tensor.contiguous().view(_INTEGER[size]).flatten().tolist()
    return [f"{word & ((1 << 8 * size) - 1):0{2 * size}x}" for word in words]


def compare_attributes(
    actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], device: torch.device
) -> Difference | None:
    """Difference in the number, shape, dtype, stride or device of the results."""
    if len(actual) != len(expected):
        return Difference(f"{len(actual)} results, expected {len(expected)}")
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        for name, got, wanted in (
            ("shape", tuple(a.shape), tuple(e.shape)),
            ("dtype", a.dtype, e.dtype),
            ("stride", a.stride() if a.numel() else None, e.stride() if e.numel() else None),
            ("device", a.device, device),
        ):
            if got != wanted:
                return Difference(f"{name} of result {i} is {got}, expected {wanted}")
    return None


def compare_bytes(actual: torch.Tensor, expected: torch.Tensor, where: str) -> Comparison:
    """Byte comparison where there is no input block to show: swizzled scales."""
    a, e = (t.contiguous().view(torch.uint8).flatten() for t in (actual.cpu(), expected))
    blocks = -(-e.numel() // BLOCK_SIZE)
    differing = (a != e).nonzero().flatten()
    if not differing.numel():
        return Comparison(blocks)
    i = int(differing[0])
    details = {
        "expected byte": f"{int(e[i]):02x}",
        "got byte": f"{int(a[i]):02x}",
        "differing bytes": f"{differing.numel()} of {e.numel()}",
    }
    return Comparison(blocks, 0, Difference(f"byte {i} of {where}", details))


def compare_quantized(
    actual: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    x: torch.Tensor,
    scale_layout: str,
    may_differ: MayDiffer,
    where: str = "",
) -> Comparison:
    """Compare ``(data, scale)`` of ``x``, which has its blocks along the last dimension."""
    data, scale = (t.cpu() for t in actual)
    columns = data.shape[-1] // BLOCK_SIZE
    rows = data.shape[-2] if data.dim() > 1 else 1
    count = data.numel() // BLOCK_SIZE
    if not count:
        return Comparison(0)
    codes = [t.view(torch.uint8).reshape(count, BLOCK_SIZE) for t in (data, expected[0])]
    bytes_ = [
        reference.unswizzle_scale(t, rows, columns, scale_layout).view(torch.uint8).flatten()
        if scale_layout != "linear"
        else t.view(torch.uint8).flatten()
        for t in (scale, expected[1])
    ]
    padded = torch.nn.functional.pad(x, (0, columns * BLOCK_SIZE - x.shape[-1]))
    blocks = padded.reshape(count, BLOCK_SIZE)
    differing = (codes[0] != codes[1]).any(-1) | (bytes_[0] != bytes_[1])
    deviating = 0
    if differing.any():
        allowed = may_differ(blocks.float(), bytes_[1], data.dtype)
        if allowed is not None:
            deviating = int((differing & allowed).sum())
            differing &= ~allowed
    if not differing.any():
        found = _padding_difference(scale, rows, columns, scale_layout)
        return Comparison(count, deviating, found)
    i = int(differing.nonzero()[0])
    matrix, row, column = i // (rows * columns), i // columns % rows, i % columns
    what = f"block {column} of row {row}" + (f" of matrix {matrix}" if data.dim() > 2 else "")
    details = {
        "input": [f"{v:.9g}" for v in blocks[i].float().tolist()],
        "input bits": hex_words(blocks[i]),
        "expected scale": f"{int(bytes_[1][i]):02x}",
        "got scale": f"{int(bytes_[0][i]):02x}",
        "expected data": hex_bytes(codes[1][i]),
        "got data": hex_bytes(codes[0][i]),
        "differing blocks": f"{int(differing.sum())} of {count}",
    }
    return Comparison(count, deviating, Difference(what + where, details))


def _padding_difference(
    scale: torch.Tensor, rows: int, columns: int, scale_layout: str
) -> Difference | None:
    """The first byte of a swizzled scale that belongs to no block and is not 0."""
    if scale_layout == "linear":
        return None
    ones = torch.ones(*scale.shape[:-2], rows, columns, dtype=torch.uint8).view(SCALE_DTYPE)
    is_padding = reference.swizzle_scale(ones, scale_layout).view(torch.uint8) == 0
    wrong = (is_padding & (scale.view(torch.uint8) != 0)).nonzero()
    if not wrong.numel():
        return None
    index = tuple(wrong[0].tolist())
    got = f"{int(scale.view(torch.uint8)[index]):02x}"
    details = {"expected byte": "00", "got byte": got, "differing bytes": str(wrong.shape[0])}
    return Difference(f"padding at {index} of the {scale_layout} scale", details)


def compare_dequantized(
    actual: torch.Tensor, expected: torch.Tensor, data: torch.Tensor, scale: torch.Tensor
) -> Comparison:
    """Compare numbers from ``data`` and linear ``scale`` bytes, by their bits."""
    size = expected.element_size()
    count = expected.numel() // BLOCK_SIZE
    if not count:
        return Comparison(0)
    a, e = (t.view(_INTEGER[size]).reshape(count, BLOCK_SIZE) for t in (actual.cpu(), expected))
    differing = (a != e).any(-1)
    if not differing.any():
        return Comparison(count)
    i = int(differing.nonzero()[0])
    details = {
        "input data": hex_bytes(data.reshape(count, BLOCK_SIZE)[i]),
        "input scale": f"{int(scale.contiguous().view(torch.uint8).flatten()[i]):02x}",
        "expected bits": hex_words(e[i]),
        "got bits": hex_words(a[i]),
        "differing blocks": f"{int(differing.sum())} of {count}",
    }
    columns = data.shape[-1] // BLOCK_SIZE
    return Comparison(count, 0, Difference(f"block {i % columns} of row {i // columns}", details))
