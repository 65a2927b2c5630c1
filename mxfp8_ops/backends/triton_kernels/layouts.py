"""Where a scale is stored."""

import triton
import triton.language as tl

from .numerics import LINEAR, SWIZZLED_32_4_4


@triton.jit
def tile_blocks(
    row_tile,
    column_tile,
    scale_columns,
    LAYOUT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The blocks of a tile of ROWS x COLUMNS blocks, in the order in which their scales are stored.

    Returns the first row, row and column of each block relative to the tile, the place of the tile's
    first scale (64 bits) and the place of each scale relative to it.

    In swizzled_32_4_4 a tile takes ROWS / 4 consecutive rows from each quarter of a group of 128
    rows: their scales then are runs of ROWS * 4 bytes, whole 32-byte sectors for ROWS >= 8.
    """
    block = tl.arange(0, ROWS * COLUMNS)
    first_column = column_tile.to(tl.int64) * COLUMNS
    if LAYOUT == LINEAR:
        first_row = row_tile * ROWS
        row = block // COLUMNS
        column = block % COLUMNS
        scale_base = first_row.to(tl.int64) * scale_columns + first_column
        scale_offset = row * scale_columns + column
    elif LAYOUT == SWIZZLED_32_4_4:
        LINES: tl.constexpr = ROWS // 4
        RUN: tl.constexpr = ROWS * 4
        group = row_tile // (32 // LINES)
        line = row_tile % (32 // LINES) * LINES
        first_row = group * 128 + line
        row = block // 4 % 4 * 32 + block // 16 % LINES
        column = block % 4 + block // RUN * 4
        scale_base = (group.to(tl.int64) * scale_columns + first_column) * 128 + line * 16
        scale_offset = block % RUN + block // RUN * 512
    else:
        RUN8: tl.constexpr = COLUMNS * 8
        first_row = row_tile * ROWS
        row = block // 4 % 8 + block // RUN8 * 8
        column = block % 4 + block // 32 % (COLUMNS // 4) * 4
        scale_base = (first_row.to(tl.int64) * scale_columns) + first_column * 8
        scale_offset = block % RUN8 + block // RUN8 * (scale_columns * 8)
    return first_row, row, column, scale_base, scale_offset


@triton.jit
def scale_place(row, column, scale_columns, LAYOUT: tl.constexpr):
    """Where the scale of (row, column) is stored; 64 bits."""
    if LAYOUT == LINEAR:
        place = row.to(tl.int64) * scale_columns + column
    elif LAYOUT == SWIZZLED_32_4_4:
        group = (row // 128).to(tl.int64) * 128 * scale_columns
        place = group + column // 4 * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4
    else:
        group = (row // 8).to(tl.int64) * 8 * scale_columns
        place = group + column // 4 * 32 + row % 8 * 4 + column % 4
    return place
