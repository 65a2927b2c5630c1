"""Quantization along the columns, alone or with the rows."""

import triton
import triton.language as tl

from .layouts import scale_place
from .numerics import encode, load_fp32, scale_byte, wait_for_previous_kernel


@triton.jit(
    do_not_specialize=[
        "rows",
        "column_units",
        "data_columns",
        "scale_rows",
        "scale_columns",
        "data_t_columns",
        "scale_t_rows",
        "scale_t_columns",
        "row_tiles",
        "column_tiles",
        "row_stride",
        "batch_stride",
    ]
)
def quantize_columns_kernel(
    x_ptr,
    data_ptr,
    scale_ptr,
    data_t_ptr,
    scale_t_ptr,
    rows: tl.int32,
    column_units: tl.int32,
    data_columns: tl.int32,
    scale_rows: tl.int32,
    scale_columns: tl.int32,
    data_t_columns: tl.int32,
    scale_t_rows: tl.int32,
    scale_t_columns: tl.int32,
    row_tiles: tl.int32,
    column_tiles: tl.int32,
    row_stride: tl.int64,
    batch_stride: tl.int64,
    BOTH: tl.constexpr,
    MODE: tl.constexpr,
    E5M2: tl.constexpr,
    CAST: tl.constexpr,
    LAYOUT: tl.constexpr,
    LAYOUT_T: tl.constexpr,
    AXIS: tl.constexpr,
    OCTETS: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    STRIDE_UNIT: tl.constexpr,
    COLUMN_UNIT: tl.constexpr,
    VECTOR: tl.constexpr,
    EVICT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Blocks of 32 rows (data_t, scale_t) and, with BOTH, of 32 columns too, from one read of x.

    A tile is OCTETS * 8 rows x COLUMNS elements, held in three dimensions so that the layout that makes
    loads contiguous keeps the 8 rows of an octet, on dimension AXIS, in one thread: their codes are
    packed into one 64-bit word, and the transposition through shared memory moves words instead of
    bytes. Triton 3.6 spreads lanes over dimension 0 before 1, 3.7 over 1 before 0; with the other AXIS
    sm_90 code has 240 to 330 stores to shared memory instead of 12 to 30.
    """
    ROWS: tl.constexpr = OCTETS * 8
    BLOCKS_T: tl.constexpr = ROWS // 32
    BLOCKS: tl.constexpr = COLUMNS // 32
    FP32: tl.constexpr = x_ptr.dtype.element_ty == tl.float32
    program = tl.program_id(0)
    tiles = row_tiles * column_tiles
    batch = (program // tiles).to(tl.int64)
    program = program % tiles
    # GROUP tiles down, then the next column: neighbours in time complete each other's lines of data_t.
    group = program // (GROUP * column_tiles)
    in_group = program % (GROUP * column_tiles)
    group_rows = tl.minimum(row_tiles - group * GROUP, GROUP)
    first_row = (group * GROUP + in_group % group_rows) * ROWS
    first_column = in_group // group_rows * COLUMNS

    D0: tl.constexpr = OCTETS if AXIS == 1 else 8
    D1: tl.constexpr = 8 if AXIS == 1 else OCTETS
    eight = tl.expand_dims(tl.arange(0, 8), 1 - AXIS)
    row = (tl.expand_dims(tl.arange(0, OCTETS) * 8, AXIS) + eight)[:, :, None]
    column = tl.arange(0, COLUMNS)
    x_ptr += (batch * batch_stride + first_row.to(tl.int64) * row_stride) * STRIDE_UNIT
    x_ptr += first_column
    x_offset = row.to(tl.int64) * row_stride * STRIDE_UNIT + column[None, None, :]
    unit_limit = column_units - first_column // COLUMN_UNIT
    in_columns = column // COLUMN_UNIT < unit_limit
    in_rows = row < rows - first_row
    wait_for_previous_kernel(PDL)
    x = load_fp32(x_ptr + x_offset, in_rows & in_columns[None, None, :], EVICT)
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF

    octet_bits = tl.max(bits, axis=AXIS)
    amax_bits = tl.max(tl.reshape(octet_bits, [BLOCKS_T, 4, COLUMNS]), axis=1)
    byte_t = scale_byte(amax_bits, MODE, E5M2, FP32)
    spread = tl.broadcast_to(byte_t[:, None, :], [BLOCKS_T, 4, COLUMNS])
    code_t = encode(
        x, tl.expand_dims(tl.reshape(spread, [OCTETS, COLUMNS]), AXIS), MODE, E5M2, CAST
    )
    # Words of four rows: [OCTETS, 2, 4, COLUMNS] summed over the 4.
    shifted = code_t.to(tl.int32) << ((eight % 4) * 8)[:, :, None]
    if AXIS == 1:
        halves = tl.sum(tl.reshape(shifted, [OCTETS, 2, 4, COLUMNS]), axis=2)
        words = tl.trans(tl.reshape(halves, [OCTETS * 2, COLUMNS]))
    else:
        halves = tl.sum(tl.reshape(shifted, [2, 4, OCTETS, COLUMNS]), axis=1)
        words = tl.trans(tl.reshape(tl.trans(halves, 1, 0, 2), [OCTETS * 2, COLUMNS]))
    word = tl.arange(0, OCTETS * 2)
    word_ptr = data_t_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
    word_ptr += (batch * column_units * COLUMN_UNIT + first_column) * data_t_columns * 8
    word_ptr += first_row // 4
    word_offset = column.to(tl.int64) * data_t_columns * 8
    word_mask = in_columns[:, None] & (word // 8 < data_t_columns - first_row // 32)[None, :]
    tl.store(word_ptr + word_offset[:, None] + word[None, :], words, mask=word_mask)

    row_t = first_column + column
    column_t = first_row // 32 + tl.arange(0, BLOCKS_T)
    scale_t_ptr += batch * scale_t_rows * scale_t_columns
    place_t = scale_place(row_t[None, :], column_t[:, None], scale_t_columns, LAYOUT_T)
    mask_t = (row_t < scale_t_rows)[None, :] & (column_t < scale_t_columns)[:, None]
    tl.store(scale_t_ptr + place_t, byte_t.to(tl.uint8), mask=mask_t)

    if BOTH:
        block_bits = tl.reshape(bits, [D0, D1, BLOCKS, 32])
        byte = scale_byte(tl.max(block_bits, axis=3), MODE, E5M2, FP32)
        spread_row = tl.broadcast_to(byte[:, :, :, None], [D0, D1, BLOCKS, 32])
        spread_row = tl.reshape(spread_row, [D0, D1, COLUMNS])
        code = encode(x, spread_row, MODE, E5M2, CAST)
        data_ptr += (batch * rows + first_row) * data_columns * 32 + first_column
        data_offset = row.to(tl.int64) * data_columns * 32 + column[None, None, :]
        in_data = column // 32 < data_columns - first_column // 32
        pointers = tl.multiple_of(data_ptr + data_offset, [VECTOR, VECTOR, VECTOR])
        tl.store(pointers, code, mask=in_rows & in_data[None, None, :])
        block_column = first_column // 32 + tl.arange(0, BLOCKS)
        scale_row = first_row + row
        scale_ptr += batch * scale_rows * scale_columns
        place = scale_place(scale_row, block_column[None, None, :], scale_columns, LAYOUT)
        mask = (scale_row < scale_rows) & (block_column < scale_columns)[None, None, :]
        tl.store(scale_ptr + place, byte.to(tl.uint8), mask=mask)
