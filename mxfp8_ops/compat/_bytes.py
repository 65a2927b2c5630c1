"""What the drop-ins share: the input check of the originals, and scales as flat bytes."""

from __future__ import annotations

from typing import Any

import torch

from .. import formats
from ..formats import BLOCK_SIZE, SCALE_DTYPE


def check_input(x: Any, name: str, dimensions: int = 1, *, or_more: bool = True) -> None:
    """Raise TypeError or ValueError unless ``x`` is a tensor of so many dimensions and of whole blocks.

    The ops pad any K when they are given an alignment. The originals do not, and have 32 as their default
    alignment: without this check a K that they refuse would come back longer.
    """
    _check_tensor(x, name)
    if x.dim() < dimensions or (x.dim() > dimensions and not or_more):
        allowed = f"{dimensions} or more" if or_more else f"{dimensions}"
        raise ValueError(f"{name} must have {allowed} dimensions, got shape {tuple(x.shape)}")
    if x.shape[-1] % BLOCK_SIZE != 0:
        raise ValueError(
            f"the last dimension of {name} must be a multiple of {BLOCK_SIZE}, got shape "
            f"{tuple(x.shape)}; mxfp8_ops.quantize(..., alignment={BLOCK_SIZE}) pads it with zeros"
        )


def _check_tensor(x: Any, name: str) -> None:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")


def quantize_rows(
    x: torch.Tensor, scale_layout: str, alignment: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """All rows of ``x`` as one matrix: data ``[rows, Kp]`` and scale bytes ``[n]``.

    FlashInfer folds the batch into the rows before it pads, so a swizzled tile may hold rows of two
    matrices.
    """
    rows = x if x.dim() == 2 else x.flatten(0, -2)
    data, scale = torch.ops.mxfp8.quantize(rows, scale_layout=scale_layout, alignment=alignment)
    return data, scale.flatten().view(torch.uint8)


def as_scale(scale: Any, name: str) -> torch.Tensor:
    """``scale`` as ``float8_e8m0fnu``: a view, never a conversion of values."""
    _check_tensor(scale, name)
    if scale.dtype not in (torch.uint8, SCALE_DTYPE):
        raise ValueError(
            f"{name} must hold scale bytes as torch.uint8 or {SCALE_DTYPE}, got dtype {scale.dtype}"
        )
    return scale.view(SCALE_DTYPE)


def shape_scale(
    scale: torch.Tensor, name: str, rows: int, columns: int, scale_layout: str
) -> torch.Tensor:
    """Flat scales as the ops take them: ``[rows, columns]``, padded to whole tiles."""
    shape = formats.scale_shape((), rows, columns, scale_layout)
    expected = shape[0] * shape[1]
    if scale.numel() != expected:
        raise ValueError(
            f"{name} must have {expected} elements for {rows} rows of {columns} scales in layout "
            f"'{scale_layout}', got {scale.numel()}"
        )
    return scale.reshape(shape)
