"""MXFP8 in plain torch: the specification that every backend meets byte for byte.

A block is 32 consecutive elements along the last dimension and has one E8M0 scale byte ``s``, worth
``2**(s - 127)``; ``s = 255`` is NaN and ``s = 0`` is worth ``2**-127``. With ``amax`` the largest
|x| of the block in fp32, ``e`` its biased exponent and ``m`` its mantissa field:

========  ==========================================================  ===========================
mode      scale byte before the clamp to [0, 254]                     source
========  ==========================================================  ===========================
rceil     smallest s with amax * fp32(1/max) <= 2**(s - 127)          cuBLAS MXFP8 recipe
floor     e - emax                                                    OCP MX v1.0, section 6.3
ceil      e + (m != 0) - emax                                         torchao CEIL
even      exponent of amax rounded to the element's mantissa - emax   torchao EVEN
========  ==========================================================  ===========================

Elements are ``RNE(clamp(fp32(x) * 2**(127 - s), -max, max))``. A block with a NaN or an infinity has
``s = 255`` and 32 data bytes 0x7F.

These functions trace: called inside ``torch.compile`` they are ordinary torch code that Inductor can
fuse with its neighbours. The registered ops are opaque to it instead. Inductor has no CPU code for
``float8_e8m0fnu``: there, use ``quantize_bytes`` and ``dequantize_bytes``, whose scales are uint8.
"""

from __future__ import annotations

from typing import Any

import torch

from . import formats
from .formats import BLOCK_SIZE, E8M0_NAN, NAN_CODE, SCALE_DTYPE, SCALE_LAYOUTS, ElementFormat

_MANTISSA_MASK = 0x7FFFFF
_INFINITY_BITS = 0x7F800000
_QUIET_NAN = {
    torch.bfloat16: (0x7FC0, torch.int16),
    torch.float16: (0x7E00, torch.int16),
    torch.float32: (0x7FC00000, torch.int32),
}


def scale_byte(amax_bits: torch.Tensor, element: ElementFormat, scaling_mode: str) -> torch.Tensor:
    """Scale byte of blocks whose largest \\|x\\| has the fp32 bits ``amax_bits``.

    Exponents come from integer fields: log2, exp2 and a rounded division are wrong next to powers of
    two, and some devices flush the subnormals that they need.

    Args:
        amax_bits: int32, fp32 bits with the sign cleared.
        element: element format.
        scaling_mode: one of ``formats.SCALING_MODES``.

    Returns:
        int32 of the same shape, 0 to 247, or 255 for a NaN or infinite ``amax``.
    """
    not_finite = amax_bits >= _INFINITY_BITS
    amax_bits = torch.clamp(amax_bits, max=_INFINITY_BITS)  # so that "even" cannot overflow int32
    if scaling_mode == "even":
        exponent = (amax_bits + (1 << (22 - element.mantissa_bits))) >> 23
    else:
        exponent = amax_bits >> 23
        mantissa = amax_bits & _MANTISSA_MASK
        if scaling_mode == "ceil":
            exponent = exponent + (mantissa != 0).to(torch.int32)
        elif scaling_mode == "rceil":
            # max is 1.75 * 2**emax, so amax / max has exponent e - emax, one more when the mantissa is
            # above that of 1.75. The rule multiplies by fp32(1 / max), which rounds: one fp32 value,
            # the neighbour above max * 2**-127, comes out as exactly 2**-127 and keeps s = 0.
            exponent = exponent + (mantissa > 0x600000).to(torch.int32)
            rounds_down = (element.emax << 23) | 0x600001
            exponent = torch.where(amax_bits == rounds_down, 0, exponent)
    byte = torch.clamp(exponent - element.emax, min=0)
    if scaling_mode == "even":
        not_finite = exponent >= 255
    return torch.where(not_finite, E8M0_NAN, byte)


def inverse_scale(byte: torch.Tensor) -> torch.Tensor:
    """``2**(127 - byte)`` as fp32, built from bits; 1 for byte 255."""
    bits = torch.where(byte >= 254, 0x00400000, (254 - byte) << 23)
    return torch.where(byte == E8M0_NAN, 0x3F800000, bits).view(torch.float32)


def quantize_bytes(
    input: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    alignment: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``quantize`` with the scale bytes as ``torch.uint8``."""
    formats.check_quantize(
        input,
        dtype=dtype,
        scaling_mode=scaling_mode,
        scale_layout=scale_layout,
        alignment=alignment,
    )
    element = formats.element_format(dtype)
    data_shape, _ = formats.quantized_shapes(input.shape, scale_layout, alignment)
    blocks_shape = (*data_shape[:-1], data_shape[-1] // BLOCK_SIZE, BLOCK_SIZE)

    values = input.detach().float().contiguous()  # elementwise results keep the strides
    padding = data_shape[-1] - input.shape[-1]
    if alignment is not None:
        values = torch.nn.functional.pad(values, (0, padding))
    blocks = values.reshape(blocks_shape)
    # Ordered as integers, NaN bits > infinity bits > finite bits: the maximum cannot lose a NaN.
    amax_bits = (blocks.view(torch.int32) & 0x7FFFFFFF).amax(-1)
    byte = scale_byte(amax_bits, element, scaling_mode)
    scaled = blocks * inverse_scale(byte).unsqueeze(-1)
    # torch's casts differ in saturation by version and format, so the clamp is explicit.
    codes = scaled.clamp(-element.max, element.max).to(element.dtype).view(torch.uint8)
    codes = torch.where((byte == E8M0_NAN).unsqueeze(-1), NAN_CODE, codes).to(torch.uint8)

    data = codes.reshape(data_shape).view(element.dtype)
    return data, _swizzle_bytes(byte.to(torch.uint8), scale_layout)


def quantize(
    input: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    alignment: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize along the last dimension; arguments and results as in ``mxfp8_ops.quantize``."""
    data, scale = quantize_bytes(
        input,
        dtype=dtype,
        scaling_mode=scaling_mode,
        scale_layout=scale_layout,
        alignment=alignment,
    )
    return data, scale.view(SCALE_DTYPE)


def quantize_columnwise(
    input: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    alignment: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``quantize(input.mT.contiguous(), ...)``: blocks of 32 rows, results transposed."""
    formats.check_quantize_columnwise(
        input,
        dtype=dtype,
        scaling_mode=scaling_mode,
        scale_layout=scale_layout,
        alignment=alignment,
    )
    return quantize(
        input.mT,
        dtype=dtype,
        scaling_mode=scaling_mode,
        scale_layout=scale_layout,
        alignment=alignment,
    )


def quantize_both(
    input: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    scale_layout_t: str | None = None,
    alignment: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The pairs of ``quantize`` and ``quantize_columnwise``: ``(data, scale, data_t, scale_t)``."""
    formats.check_quantize_both(
        input,
        dtype=dtype,
        scaling_mode=scaling_mode,
        scale_layout=scale_layout,
        scale_layout_t=scale_layout_t,
        alignment=alignment,
    )
    layout_t = scale_layout if scale_layout_t is None else scale_layout_t
    options: dict[str, Any] = {"dtype": dtype, "scaling_mode": scaling_mode, "alignment": alignment}
    return (
        *quantize(input, scale_layout=scale_layout, **options),
        *quantize(input.mT, scale_layout=layout_t, **options),
    )


def dequantize(
    data: torch.Tensor,
    scale: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scale_layout: str = "linear",
) -> torch.Tensor:
    """``fp32(data) * 2**(scale - 127)``, rounded to ``dtype``; as in ``mxfp8_ops.dequantize``.

    Every NaN of the result is the quiet NaN with a clear sign and no payload.
    """
    formats.check_dequantize(data, scale, dtype=dtype, scale_layout=scale_layout)
    return dequantize_bytes(
        data, scale.detach().view(torch.uint8), dtype=dtype, scale_layout=scale_layout
    )


def dequantize_bytes(
    data: torch.Tensor,
    scale: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scale_layout: str = "linear",
) -> torch.Tensor:
    """``dequantize`` for scale bytes in a ``torch.uint8`` tensor; arguments are not checked."""
    columns = data.shape[-1] // BLOCK_SIZE
    rows = data.shape[-2] if data.dim() > 1 else 1
    stored = scale
    if data.dim() > 1 or scale_layout != "linear":
        stored = _unswizzle_bytes(stored, rows, columns, scale_layout)
    byte = stored.reshape(*data.shape[:-1], columns).to(torch.int32)
    bits = torch.where(byte == 0, 0x00400000, byte << 23)
    bits = torch.where(byte == E8M0_NAN, 0x7FC00000, bits)
    blocks = data.detach().float().reshape(*data.shape[:-1], columns, BLOCK_SIZE)
    values = blocks * bits.view(torch.float32).unsqueeze(-1)
    output = torch.bfloat16 if dtype is None else dtype
    # In integers: torch's vectorised cast, which Inductor uses too, makes every NaN bfloat16 0xFFFF.
    nan, integer = _QUIET_NAN[output]
    codes = torch.where(values.isnan(), nan, values.to(output).view(integer)).to(integer)
    # The change of dtype last: autograd tracks views, and does not take this one for one.
    return codes.reshape(data.shape).contiguous().view(output)


def swizzle_scale(scale: torch.Tensor, scale_layout: str) -> torch.Tensor:
    """Linear scales ``[*batch, rows, columns]`` to ``scale_layout``; padding bytes are 0."""
    formats.check_swizzle_scale(scale, scale_layout)
    swizzled = _swizzle_bytes(scale.detach().view(torch.uint8), scale_layout)
    return swizzled.clone(memory_format=torch.contiguous_format).view(SCALE_DTYPE)


def unswizzle_scale(
    scale: torch.Tensor, rows: int, columns: int, scale_layout: str
) -> torch.Tensor:
    """The inverse of ``swizzle_scale``: linear scales ``[*batch, rows, columns]``."""
    formats.check_unswizzle_scale(scale, rows, columns, scale_layout)
    stored = _unswizzle_bytes(scale.detach().view(torch.uint8), rows, columns, scale_layout)
    return stored.clone(memory_format=torch.contiguous_format).view(SCALE_DTYPE)


def _swizzle_bytes(scale: torch.Tensor, scale_layout: str) -> torch.Tensor:
    layout = SCALE_LAYOUTS[scale_layout]
    if scale_layout == "linear":
        return scale
    if scale.dim() == 1:
        scale = scale.unsqueeze(0)
    batch = scale.shape[:-2]
    rows, columns = scale.shape[-2:]
    padded_rows = formats.round_up(rows, layout.tile_rows)
    padded_columns = formats.round_up(columns, layout.tile_columns)
    padding = (0, padded_columns - columns, 0, padded_rows - rows)
    tiles = torch.nn.functional.pad(scale, padding)
    row_tiles, column_tiles = padded_rows // layout.tile_rows, padded_columns // layout.tile_columns
    if scale_layout == "swizzled_32_4_4":
        # Within a tile of 128 rows, row r goes to line r % 32, quarter r / 32.
        tiles = tiles.reshape(*batch, row_tiles, 4, 32, column_tiles, 4)
        tiles = tiles.movedim((-2, -3, -4), (-4, -3, -2))
    else:
        tiles = tiles.reshape(*batch, row_tiles, 8, column_tiles, 4).transpose(-2, -3)
    return tiles.reshape(*batch, padded_rows, padded_columns)


def _unswizzle_bytes(
    scale: torch.Tensor, rows: int, columns: int, scale_layout: str
) -> torch.Tensor:
    layout = SCALE_LAYOUTS[scale_layout]
    if scale_layout == "linear":
        return scale
    batch = scale.shape[:-2]
    padded_rows, padded_columns = scale.shape[-2:]
    row_tiles, column_tiles = padded_rows // layout.tile_rows, padded_columns // layout.tile_columns
    if scale_layout == "swizzled_32_4_4":
        tiles = scale.reshape(*batch, row_tiles, column_tiles, 32, 4, 4)
        tiles = tiles.movedim((-4, -3, -2), (-2, -3, -4))
    else:
        tiles = scale.reshape(*batch, row_tiles, column_tiles, 8, 4).transpose(-2, -3)
    return tiles.reshape(*batch, padded_rows, padded_columns)[..., :rows, :columns]
