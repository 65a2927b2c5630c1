"""``flashinfer.mxfp8_quantize`` and its companions, as of FlashInfer 0.6.7 to 0.7.2.

0.7.4 renames the default ``backend`` to ``"auto"`` and adds a keyword; the name is accepted here.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch

from ..formats import BLOCK_SIZE
from ._bytes import as_scale, check_input, quantize_rows, shape_scale


class SfLayout(Enum):
    """FlashInfer's names and numbers of the scale layouts."""

    layout_128x4 = 0
    layout_8x4 = 1
    layout_linear = 2


_LAYOUTS = ("swizzled_32_4_4", "swizzled_8x4", "linear")


def _scale_layout(sf_swizzle_layout: Any, is_sf_swizzled_layout: bool) -> str:
    if sf_swizzle_layout is None:
        return "swizzled_32_4_4" if is_sf_swizzled_layout else "linear"
    # FlashInfer's own enum is another class with the same values.
    number = getattr(sf_swizzle_layout, "value", sf_swizzle_layout)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(_LAYOUTS):
        raise ValueError(
            "sf_swizzle_layout must be None, a SfLayout or its number, 0 (128x4), 1 (8x4) or "
            f"2 (linear), got {sf_swizzle_layout!r}"
        )
    return _LAYOUTS[number]


def mxfp8_quantize(
    input: torch.Tensor,
    is_sf_swizzled_layout: bool = True,
    alignment: int = 32,
    enable_pdl: bool | None = None,
    backend: str = "cuda",
    sf_swizzle_layout: SfLayout | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize to e4m3 with flat uint8 scales; leading dimensions are folded into the rows.

    The batch is folded *before* scales are padded and swizzled, as in FlashInfer's kernels, so that a
    consumer of FlashInfer's flat scales finds each byte in its place.

    Args:
        input: ``[*batch, M, K]``, two dimensions or more; bfloat16, float16 or float32; K a multiple of 32.
        is_sf_swizzled_layout: whether scales are swizzled (128x4) instead of linear.
        alignment: pads K with zeros to a multiple of this multiple of 32.
        enable_pdl: chooses nothing here.
        backend: ``"cuda"``, ``"auto"`` or ``"cute-dsl"``. It decides the shape of the data, as it does in
            FlashInfer, and not the kernel.
        sf_swizzle_layout: a ``SfLayout``, FlashInfer's or this one, or its number; overrides
            ``is_sf_swizzled_layout``.

    Returns:
        ``(data, scale)``, data ``float8_e4m3fn`` ``[*batch, M, Kp]``, or ``[rows, Kp]`` for
        ``"cute-dsl"``, scale uint8 ``[n]``.

    Raises:
        TypeError: input is not a tensor.
        ValueError: a bad argument.
    """
    check_input(input, "input", 2)
    if backend not in ("cuda", "auto", "cute-dsl"):
        raise ValueError(f"backend must be one of 'cuda', 'auto', 'cute-dsl', got {backend!r}")
    layout = _scale_layout(sf_swizzle_layout, is_sf_swizzled_layout)
    data, scale = quantize_rows(input, layout, alignment)
    if backend != "cute-dsl" and input.dim() > 2:
        data = data.view(*input.shape[:-1], data.shape[-1])
    return data, scale


def mxfp8_dequantize_host(
    input: torch.Tensor,
    scale_tensor: torch.Tensor,
    is_sf_swizzled_layout: bool = True,
    sf_swizzle_layout: SfLayout | None = None,
) -> torch.Tensor:
    """Dequantize to float32, on any device.

    Args:
        input: ``[*batch, M, K]``, ``float8_e4m3fn`` or its bytes as uint8.
        scale_tensor: scale bytes as ``mxfp8_quantize`` returns them, uint8 or ``float8_e8m0fnu``.
        is_sf_swizzled_layout: whether scales are swizzled (128x4) instead of linear.
        sf_swizzle_layout: a ``SfLayout`` or its number; overrides ``is_sf_swizzled_layout``.

    Returns:
        float32 of input's shape; scale byte 255 gives NaN.

    Raises:
        TypeError: input is not a tensor.
        ValueError: a dtype, a shape or the number of scales does not fit.
    """
    check_input(input, "input", 2)
    layout = _scale_layout(sf_swizzle_layout, is_sf_swizzled_layout)
    rows = (input.view(torch.float8_e4m3fn) if input.dtype == torch.uint8 else input).flatten(0, -2)
    scale = shape_scale(
        as_scale(scale_tensor, "scale_tensor"),
        "scale_tensor",
        rows.shape[0],
        rows.shape[1] // BLOCK_SIZE,
        layout,
    )
    values = torch.ops.mxfp8.dequantize(rows, scale, dtype=torch.float32, scale_layout=layout)
    return values.view(input.shape)


def block_scale_interleave(unswizzled_sf: torch.Tensor) -> torch.Tensor:
    """Linear scales in the order of the 128x4 layout, each matrix by itself; padding bytes are 0.

    Args:
        unswizzled_sf: uint8 or ``float8_e8m0fnu``, ``[M, K / 32]`` or ``[experts, M, K / 32]``.

    Returns:
        A new flat tensor of the same dtype.

    Raises:
        ValueError: not scale bytes, or not 2 or 3 dimensions.
    """
    scale = as_scale(unswizzled_sf, "unswizzled_sf")
    if scale.dim() not in (2, 3):
        raise ValueError(
            f"unswizzled_sf must have 2 or 3 dimensions, got shape {tuple(unswizzled_sf.shape)}"
        )
    swizzled = torch.ops.mxfp8.swizzle_scale(scale, "swizzled_32_4_4")
    return swizzled.flatten().view(unswizzled_sf.dtype)
