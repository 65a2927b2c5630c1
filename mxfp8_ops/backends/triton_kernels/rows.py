"""Quantization along the rows."""

import triton
import triton.language as tl

from .layouts import tile_blocks
from .numerics import encode, load_fp32, scale_byte, wait_for_previous_kernel


@triton.jit(do_not_specialize=["n_blocks"])
def quantize_flat_kernel(
    x_ptr,
    data_ptr,
    scale_ptr,
    n_blocks: tl.int64,
    MODE: tl.constexpr,
    E5M2: tl.constexpr,
    CAST: tl.constexpr,
    BLOCKS: tl.constexpr,
    VECTOR: tl.constexpr,
    EVICT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Contiguous x, linear scales, no padding: a flat list of blocks, BLOCKS of them per program."""
    # A 64-bit base for each program and 32-bit offsets inside the tile: cheap addressing, buffer
    # instructions on AMD, and more than 2**31 elements.
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    block = tl.arange(0, BLOCKS)
    offset = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    # Masked by block: a mask by element would make loads on AMD scalar.
    mask = block < n_blocks - first
    wait_for_previous_kernel(PDL)
    x = load_fp32(x_ptr + first * 32 + offset, mask[:, None], EVICT)
    amax_bits = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    byte = scale_byte(amax_bits, MODE, E5M2, x_ptr.dtype.element_ty == tl.float32)
    code = encode(x, byte[:, None], MODE, E5M2, CAST)
    # Codes per thread: 8 make each load of 16-bit values one contiguous run of a warp.
    pointers = tl.multiple_of(data_ptr + first * 32 + offset, [VECTOR, VECTOR])
    tl.store(pointers, code, mask=mask[:, None])
    tl.store(scale_ptr + first + block, byte.to(tl.uint8), mask=mask)


@triton.jit(
    do_not_specialize=[
        "rows",
        "column_units",
        "data_columns",
        "scale_rows",
        "scale_columns",
        "row_tiles",
        "column_tiles",
        "row_stride",
        "batch_stride",
    ]
)
def quantize_tiles_kernel(
    x_ptr,
    data_ptr,
    scale_ptr,
    rows: tl.int32,
    column_units: tl.int32,
    data_columns: tl.int32,
    scale_rows: tl.int32,
    scale_columns: tl.int32,
    row_tiles: tl.int32,
    column_tiles: tl.int32,
    row_stride: tl.int64,
    batch_stride: tl.int64,
    MODE: tl.constexpr,
    E5M2: tl.constexpr,
    CAST: tl.constexpr,
    LAYOUT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STRIDE_UNIT: tl.constexpr,
    COLUMN_UNIT: tl.constexpr,
    VECTOR: tl.constexpr,
    EVICT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Any layout, row stride, padding and batch: tiles of ROWS rows x COLUMNS blocks.

    ``row_stride`` and ``batch_stride`` count STRIDE_UNIT elements, ``column_units`` counts COLUMN_UNIT
    elements of a row of x: the units tell the compiler how wide loads may be. ``data_columns`` counts
    blocks of a row of data, ``scale_rows`` and ``scale_columns`` what is stored, padding included.
    """
    program = tl.program_id(0)
    column_tile = program % column_tiles
    row_tile = program // column_tiles % row_tiles
    batch = (program // column_tiles // row_tiles).to(tl.int64)
    first_row, row, column, scale_base, scale_offset = tile_blocks(
        row_tile, column_tile, scale_columns, LAYOUT, ROWS, COLUMNS
    )
    first_column = column_tile * COLUMNS
    element = tl.arange(0, 32)
    x_ptr += (batch * batch_stride + first_row.to(tl.int64) * row_stride) * STRIDE_UNIT
    x_ptr += first_column.to(tl.int64) * 32
    data_base = (batch * rows + first_row) * data_columns + first_column
    scale_base += batch * scale_rows * scale_columns

    in_rows = row < rows - first_row
    if COLUMN_UNIT == 32:
        x_mask = (in_rows & (column < column_units - first_column))[:, None]
    else:
        unit = (column[:, None] * 32 + element[None, :]) // COLUMN_UNIT
        x_mask = in_rows[:, None] & (unit < column_units - first_column * (32 // COLUMN_UNIT))
    x_offset = row.to(tl.int64) * row_stride * STRIDE_UNIT + column * 32
    wait_for_previous_kernel(PDL)
    x = load_fp32(x_ptr + x_offset[:, None] + element[None, :], x_mask, EVICT)
    amax_bits = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    byte = scale_byte(amax_bits, MODE, E5M2, x_ptr.dtype.element_ty == tl.float32)
    code = encode(x, byte[:, None], MODE, E5M2, CAST)

    data_offset = (row.to(tl.int64) * data_columns + column) * 32
    data_pointers = data_ptr + data_base * 32 + data_offset[:, None] + element[None, :]
    data_mask = in_rows & (column < data_columns - first_column)
    tl.store(tl.multiple_of(data_pointers, [VECTOR, VECTOR]), code, mask=data_mask[:, None])
    scale_mask = (row < scale_rows - first_row) & (column < scale_columns - first_column)
    tl.store(scale_ptr + scale_base + scale_offset, byte.to(tl.uint8), mask=scale_mask)
