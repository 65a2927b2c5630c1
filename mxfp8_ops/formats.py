"""The MXFP8 format in numbers: elements, scaling modes, scale layouts, shapes and their checks.

Everything here works on Python ints and on SymInts alike, so eager kernels, fakes and traced code
share one set of shape formulas and one set of error sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

BLOCK_SIZE = 32
"""Elements that share one E8M0 scale."""

E8M0_NAN = 255
"""Scale byte of a block that contains a NaN or an infinity."""

NAN_CODE = 0x7F
"""Data byte of every element of such a block, in both element formats."""

SCALE_DTYPE = torch.float8_e8m0fnu
INPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
OUTPUT_DTYPES = INPUT_DTYPES
SCALING_MODES = ("rceil", "floor", "ceil", "even")


@dataclass(frozen=True)
class ElementFormat:
    """An FP8 element type: ``max`` is ``1.75 * 2**emax`` in both of them."""

    dtype: torch.dtype
    emax: int
    mantissa_bits: int
    max: float


ELEMENT_FORMATS = {
    torch.float8_e4m3fn: ElementFormat(torch.float8_e4m3fn, 8, 3, 448.0),
    torch.float8_e5m2: ElementFormat(torch.float8_e5m2, 15, 2, 57344.0),
}


@dataclass(frozen=True)
class ScaleLayout:
    """Scales are stored in tiles of ``tile_rows`` x ``tile_columns``; ``linear`` has tiles of 1 x 1."""

    name: str
    tile_rows: int
    tile_columns: int


SCALE_LAYOUTS = {
    layout.name: layout
    for layout in (
        ScaleLayout("linear", 1, 1),
        ScaleLayout("swizzled_32_4_4", 128, 4),
        ScaleLayout("swizzled_8x4", 8, 4),
    )
}


def round_up(n: Any, multiple: int) -> Any:
    """Smallest multiple of ``multiple`` that is >= ``n``; ``n`` is an int or a SymInt."""
    return n if multiple == 1 else (n + (multiple - 1)) // multiple * multiple


def element_format(dtype: torch.dtype | None) -> ElementFormat:
    """The element format of ``dtype``; None means ``float8_e4m3fn``."""
    return ELEMENT_FORMATS[torch.float8_e4m3fn if dtype is None else dtype]


def scale_shape(
    batch: Sequence[Any], rows: Any, columns: Any, scale_layout: str
) -> tuple[Any, ...]:
    """Shape of the scales of a ``[*batch, rows, 32 * columns]`` tensor."""
    layout = SCALE_LAYOUTS[scale_layout]
    return (*batch, round_up(rows, layout.tile_rows), round_up(columns, layout.tile_columns))


def quantized_shapes(
    shape: Sequence[Any], scale_layout: str, alignment: int | None
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Shapes of data and scale for an input of ``shape``: ``[*batch, M, K]`` or ``[K]``."""
    padded = shape[-1] if alignment is None else round_up(shape[-1], alignment)
    columns = padded // BLOCK_SIZE
    if len(shape) == 1:
        scale = (
            (columns,) if scale_layout == "linear" else scale_shape((), 1, columns, scale_layout)
        )
        return (padded,), scale
    return (*shape[:-1], padded), scale_shape(shape[:-2], shape[-2], columns, scale_layout)


def _require(condition: Any, message: Callable[[], str]) -> None:
    """Raise ValueError unless ``condition`` holds; a SymBool becomes a guard or a runtime check."""
    if condition is True:
        return
    if condition is False:
        raise ValueError(message())
    torch._check_value(condition, message)


def _names(items: Sequence[Any]) -> str:
    return ", ".join(repr(i) if isinstance(i, str) else str(i) for i in items)


def _require_tensor(what: str, value: Any) -> None:
    # The dispatcher of torch passes None on where a schema asks for a tensor.
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{what} must be a torch.Tensor, got {value!r}")
    if value.layout != torch.strided:
        raise ValueError(f"{what} must be dense, of layout torch.strided, got {value.layout}")


def _require_member(what: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        raise ValueError(f"{what} must be one of {_names(allowed)}, got {_names([value])}")


def _require_block_multiple(name: str, size: Any, alignment: int | None) -> None:
    if alignment is None:
        _require(
            size % BLOCK_SIZE == 0,
            lambda: (
                f"{name} must be a multiple of {BLOCK_SIZE} unless alignment is given, "
                f"got {name} = {size}; alignment={BLOCK_SIZE} pads it with zeros"
            ),
        )


def _check_quantize_arguments(
    input: torch.Tensor,
    dtype: torch.dtype | None,
    scaling_mode: str,
    scale_layout: str,
    alignment: int | None,
    dimensions: int,
) -> None:
    _require_tensor("input", input)
    _require_member("input.dtype", input.dtype, INPUT_DTYPES)
    _require_member("dtype", dtype, (None, *ELEMENT_FORMATS))
    _require_member("scaling_mode", scaling_mode, SCALING_MODES)
    _require_member("scale_layout", scale_layout, tuple(SCALE_LAYOUTS))
    if input.dim() < dimensions:
        raise ValueError(
            f"input must have at least {dimensions} dimension{'s' * (dimensions > 1)}, got a "
            f"{input.dim()}-dimensional tensor"
        )
    if alignment is not None and (alignment <= 0 or alignment % BLOCK_SIZE != 0):
        raise ValueError(
            f"alignment must be None or a positive multiple of {BLOCK_SIZE}, got {alignment}"
        )


def check_quantize(
    input: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    alignment: int | None = None,
) -> None:
    """Raise ValueError, with what was wrong and what is allowed, for a bad ``quantize`` call."""
    _check_quantize_arguments(input, dtype, scaling_mode, scale_layout, alignment, 1)
    _require_block_multiple("K", input.shape[-1], alignment)


def check_quantize_columnwise(
    input: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    alignment: int | None = None,
) -> None:
    """Raise ValueError for a bad ``quantize_columnwise`` call."""
    _check_quantize_arguments(input, dtype, scaling_mode, scale_layout, alignment, 2)
    _require_block_multiple("M", input.shape[-2], alignment)


def check_quantize_both(
    input: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    scale_layout_t: str | None = None,
    alignment: int | None = None,
) -> None:
    """Raise ValueError for a bad ``quantize_both`` call."""
    _check_quantize_arguments(input, dtype, scaling_mode, scale_layout, alignment, 2)
    _require_member("scale_layout_t", scale_layout_t, (None, *SCALE_LAYOUTS))
    _require_block_multiple("K", input.shape[-1], alignment)
    _require_block_multiple("M", input.shape[-2], alignment)


def _require_shape(what: str, actual: Sequence[Any], expected: Sequence[Any], why: str) -> None:
    def message() -> str:
        return f"{what} must have shape {tuple(expected)} {why}, got {tuple(actual)}"

    if len(actual) != len(expected):
        raise ValueError(message())
    for a, e in zip(actual, expected, strict=True):
        _require(a == e, message)


def _require_scale(scale: torch.Tensor) -> None:
    _require_tensor("scale", scale)
    if scale.dtype != SCALE_DTYPE:
        raise ValueError(
            f"scale must have dtype {SCALE_DTYPE}, got {scale.dtype}; bytes in a torch.uint8 tensor are "
            f"passed as scale.view({SCALE_DTYPE})"
        )


def check_dequantize(
    data: torch.Tensor,
    scale: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scale_layout: str = "linear",
) -> None:
    """Raise ValueError for a bad ``dequantize`` call."""
    _require_tensor("data", data)
    _require_member("data.dtype", data.dtype, tuple(ELEMENT_FORMATS))
    _require_scale(scale)
    _require_member("dtype", dtype, (None, *OUTPUT_DTYPES))
    _require_member("scale_layout", scale_layout, tuple(SCALE_LAYOUTS))
    if data.dim() < 1:
        raise ValueError("data must have at least 1 dimension, got a 0-dimensional tensor")
    if data.device != scale.device:
        raise ValueError(
            f"data and scale must be on one device, got data on {data.device} and scale on {scale.device}"
        )
    size = data.shape[-1]
    _require(
        size % BLOCK_SIZE == 0,
        lambda: f"the last dimension of data must be a multiple of {BLOCK_SIZE}, got {size}",
    )
    expected = quantized_shapes(data.shape, scale_layout, None)[1]
    why = f"for data of shape {tuple(data.shape)} and scale_layout '{scale_layout}'"
    _require_shape("scale", scale.shape, expected, why)


def check_swizzle_scale(scale: torch.Tensor, scale_layout: str) -> None:
    """Raise ValueError for a bad ``swizzle_scale`` call."""
    _require_scale(scale)
    _require_member("scale_layout", scale_layout, tuple(SCALE_LAYOUTS))
    if scale.dim() < 1:
        raise ValueError("scale must have at least 1 dimension, got a 0-dimensional tensor")


def check_unswizzle_scale(scale: torch.Tensor, rows: int, columns: int, scale_layout: str) -> None:
    """Raise ValueError for a bad ``unswizzle_scale`` call."""
    _require_scale(scale)
    _require_member("scale_layout", scale_layout, tuple(SCALE_LAYOUTS))
    if scale.dim() < 2:
        raise ValueError(
            f"scale must have at least 2 dimensions, got a {scale.dim()}-dimensional tensor"
        )
    _require(rows >= 0, lambda: f"rows must not be negative, got {rows}")
    _require(columns >= 0, lambda: f"columns must not be negative, got {columns}")
    expected = scale_shape(scale.shape[:-2], rows, columns, scale_layout)
    why = f"for {rows} rows, {columns} columns and scale_layout '{scale_layout}'"
    _require_shape("scale", scale.shape, expected, why)
