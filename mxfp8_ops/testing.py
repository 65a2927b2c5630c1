"""Blocks that break quantizers, and byte comparison. Used by the tests and by ``verify``."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .formats import BLOCK_SIZE, ELEMENT_FORMATS

_BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


def all_patterns(dtype: torch.dtype) -> torch.Tensor:
    """``[2048, 32]``: every bit pattern of a 16-bit type, neighbours together."""
    return torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype).reshape(-1, BLOCK_SIZE)


def all_patterns_as_maxima(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """``[65536, 32]``: every pattern of a 16-bit type as first element, smaller elements behind it."""
    head = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    generator = torch.Generator().manual_seed(seed)
    magnitude = (head & 0x7FFF).to(torch.int32).unsqueeze(1)
    # Magnitudes as integers order like magnitudes as numbers; up to 12 binades below the first.
    span = 12 << (7 if dtype == torch.bfloat16 else 10)
    drop = torch.randint(0, span, (1 << 16, BLOCK_SIZE - 1), generator=generator)
    sign = torch.randint(0, 2, drop.shape, generator=generator) << 15
    tail = (torch.clamp(magnitude - drop, min=0) | sign).to(torch.int16)
    return torch.cat([head.unsqueeze(1), tail], 1).view(dtype)


def random_bits(dtype: torch.dtype, blocks: int, seed: int = 0) -> torch.Tensor:
    """``[blocks, 32]`` of uniformly random bit patterns, non-finite ones included."""
    generator = torch.Generator().manual_seed(seed)
    integer = _BITS[dtype]
    info = torch.iinfo(integer)
    values = torch.randint(info.min, info.max + 1, (blocks, BLOCK_SIZE), generator=generator)
    return values.to(integer).view(dtype)


def random_magnitudes(dtype: torch.dtype, blocks: int, seed: int = 0) -> torch.Tensor:
    """``[blocks, 32]`` of finite numbers, one random binade per block, subnormals included."""
    generator = torch.Generator().manual_seed(seed)
    exponent = torch.randint(-149, 128, (blocks, 1), generator=generator).double()
    values = torch.randn(blocks, BLOCK_SIZE, generator=generator).double() * torch.exp2(exponent)
    limit = torch.finfo(dtype).max
    return values.clamp(-limit, limit).to(dtype)


def edge_blocks(dtype: torch.dtype) -> torch.Tensor:
    """Zeros of both signs, non-finite values, subnormals, extremes and every scale boundary."""
    info = torch.finfo(dtype)
    rows = [torch.zeros(BLOCK_SIZE), torch.full((BLOCK_SIZE,), -0.0)]
    for value in (float("nan"), float("inf"), -float("inf")):
        for position in (0, 17, BLOCK_SIZE - 1):
            block = torch.linspace(-3, 3, BLOCK_SIZE)
            block[position] = value
            rows.append(block)
        rows.append(torch.full((BLOCK_SIZE,), value))
    for value in (info.tiny, info.max, -info.max, info.smallest_normal / 2):
        block = torch.zeros(BLOCK_SIZE)
        block[5] = value
        rows.append(block)
    blocks = [torch.stack(rows).to(dtype)]
    # Both neighbours of 2^k, 1.75 * 2^k (the rceil boundary) and of the two "even" boundaries.
    bits = _BITS[dtype]
    exponents = torch.arange(-149, 128).double()
    for significand in (1.0, 1.75, 1.875, 1.9375):
        centre = (significand * torch.exp2(exponents)).to(dtype).view(bits)
        for step in (-1, 0, 1):
            head = torch.clamp(centre + step, min=0).to(bits).view(dtype).float()
            tail = torch.linspace(-1, 1, BLOCK_SIZE - 1) * torch.nan_to_num(head, 1.0).unsqueeze(1)
            blocks.append(torch.cat([head.unsqueeze(1), tail], 1).to(dtype))
    if dtype == torch.float32:
        # The two amax values whose product with fp32(1 / max) rounds down to 2^-127.
        head = torch.tensor([0x04600001, 0x07E00001, 0x04600000, 0x07E00000], dtype=torch.int32)
        blocks.append(head.view(dtype).unsqueeze(1) * torch.linspace(1, -1, BLOCK_SIZE))
    return torch.cat(blocks)


def element_ties(dtype: torch.dtype) -> torch.Tensor:
    """Blocks whose first element fixes the scale, the others being halfway between two codes."""
    blocks = []
    for element in ELEMENT_FORMATS.values():
        codes = torch.arange(0, 0x7B, dtype=torch.uint8).view(element.dtype).double()
        ties = (codes[1:] + codes[:-1]) / 2
        values = torch.cat([codes, ties, -ties])
        values = torch.nn.functional.pad(values, (0, -values.numel() % (BLOCK_SIZE - 1)))
        values = values.reshape(-1, BLOCK_SIZE - 1)
        head = torch.full((values.shape[0], 1), element.max, dtype=torch.float64)
        blocks.append(torch.cat([head, values], 1))
    stacked = torch.cat(blocks)
    return torch.cat([(stacked * 2.0**k) for k in (0, -3, 5)]).clamp(-3e4, 3e4).to(dtype)


def adversarial_blocks(dtype: torch.dtype, random: int = 4096, seed: int = 0) -> torch.Tensor:
    """``[n, 32]``: all of the above for ``dtype``, with ``random`` blocks of each random kind."""
    parts = [
        edge_blocks(dtype),
        element_ties(dtype),
        random_bits(dtype, random, seed),
        random_magnitudes(dtype, random, seed),
    ]
    if dtype != torch.float32:
        parts.append(all_patterns(dtype))
    return torch.cat(parts)


def first_difference(
    actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> tuple[int, tuple[int, ...], int, int] | None:
    """First differing byte of two results: (which tensor, index, actual byte, expected byte).

    Bytes, because ``torch.equal`` on FP8 tensors says that NaN differs from itself. Raises ValueError
    where shapes, dtypes or strides differ.
    """
    for position, (a, e) in enumerate(zip(actual, expected, strict=True)):
        for attribute in ("shape", "dtype"):
            if getattr(a, attribute) != getattr(e, attribute):
                raise ValueError(
                    f"output {position}: {attribute} is {getattr(a, attribute)}, "
                    f"expected {getattr(e, attribute)}"
                )
        if a.numel() and a.stride() != e.stride():
            raise ValueError(f"output {position}: strides {a.stride()}, expected {e.stride()}")
        left, right = a.cpu().view(torch.uint8), e.cpu().view(torch.uint8)
        if not torch.equal(left, right):
            index = tuple((left != right).nonzero()[0].tolist())
            return position, index, int(left[index]), int(right[index])
    return None


def assert_same_bytes(
    actual: torch.Tensor | Sequence[torch.Tensor],
    expected: torch.Tensor | Sequence[torch.Tensor],
    context: str = "",
) -> None:
    """Raise AssertionError that names the first differing byte."""
    a = (actual,) if isinstance(actual, torch.Tensor) else tuple(actual)
    e = (expected,) if isinstance(expected, torch.Tensor) else tuple(expected)
    difference = first_difference(a, e)
    if difference is not None:
        position, index, got, wanted = difference
        raise AssertionError(
            f"{context}: output {position} differs at byte {index}: 0x{got:02X}, "
            f"expected 0x{wanted:02X}"
        )
