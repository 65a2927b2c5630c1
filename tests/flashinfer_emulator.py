"""FlashInfer's cute-dsl MXFP8 kernel on the CPU, bit by bit: the numbers behind the stub package.

With ``v = amax * fp32(1 / 448)``, ``amax`` being the largest |x| of the block without its NaNs:

- the scale byte is the exponent field of v, one more unless v is a power of two, at most 254; from
  0.6.13 on a subnormal v up to 2**-127 gives 0 (before: 1). A block of NaNs alone gives 254.
- elements are x * 2**(127 - byte), but the factor is 0 for bytes 0 and 254; from 0.6.18 on they are
  clamped with min and max instructions, which turn NaN into +448.
"""

from __future__ import annotations

import torch

_INFINITY_BITS = 0x7F800000
_INVERSE_448 = 0x3B124925
_TILE_ROWS = {"linear": 1, "layout_128x4": 128, "layout_8x4": 8}


def emulate_blocks(x: torch.Tensor, version: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Data and scale bytes, both uint8, of ``[M, K]`` under FlashInfer ``version``."""
    blocks = x.float().reshape(x.shape[0], -1, 32)
    magnitude = blocks.view(torch.int32) & 0x7FFFFFFF
    is_nan = magnitude > _INFINITY_BITS
    amax = magnitude.masked_fill(is_nan, 0).amax(-1).view(torch.float32)
    inverse_448 = torch.tensor(_INVERSE_448, dtype=torch.int32).view(torch.float32)
    v = (amax * inverse_448).view(torch.int32)
    exponent, mantissa = v >> 23, v & 0x7FFFFF
    inexact = mantissa != 0
    if version >= (0, 6, 13):
        inexact &= (exponent != 0) | (mantissa > 0x400000)
    byte = torch.clamp(exponent + inexact, max=254).masked_fill(is_nan.all(-1), 254)

    factor_bits = torch.where((byte == 0) | (byte == 254), 0, (254 - byte) << 23)
    scaled = blocks * factor_bits.view(torch.float32).unsqueeze(-1)
    invalid = scaled.isnan()
    finite = scaled.masked_fill(invalid, 0.0).clamp(-448.0, 448.0)
    codes = finite.to(torch.float8_e4m3fn).view(torch.uint8)
    codes = codes.masked_fill(invalid, 0x7E if version >= (0, 6, 18) else 0x7F)
    return codes.reshape(x.shape), byte.to(torch.uint8)


def arrange(scale: torch.Tensor, layout: str) -> torch.Tensor:
    """``[rows, columns]`` scale bytes as the flat buffer of a FlashInfer layout, zeros as padding."""
    rows, columns = scale.shape
    if layout == "layout_linear":
        return scale.reshape(-1)
    height = _TILE_ROWS[layout]
    padded_rows, padded_columns = -(-rows // height) * height, -(-columns // 4) * 4
    buffer = torch.zeros(padded_rows * padded_columns, dtype=torch.uint8)
    r, c = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    in_tile = r % height
    if layout == "layout_128x4":
        offset = in_tile % 32 * 16 + in_tile // 32 * 4 + c % 4
    else:
        offset = in_tile * 4 + c % 4
    tile = r // height * (padded_columns // 4) + c // 4
    buffer[tile * (height * 4) + offset] = scale
    return buffer


def emulate(
    x: torch.Tensor, layout: str, alignment: int, version: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``mxfp8_quantize`` returns: ``[M, padded K]`` e4m3 data and a flat uint8 buffer of scales."""
    x = x.reshape(-1, x.shape[-1])
    x = torch.nn.functional.pad(x, (0, -x.shape[-1] % alignment))
    codes, byte = emulate_blocks(x, version)
    return codes.view(torch.float8_e4m3fn), arrange(byte, layout)
