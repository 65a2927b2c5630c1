"""Dequantization."""

import triton
import triton.language as tl

from .layouts import tile_blocks
from .numerics import NATIVE, SOFTWARE, wait_for_previous_kernel


@triton.jit
def decode(code, E5M2: tl.constexpr, CAST: tl.constexpr):
    """FP8 codes (uint8) to fp32, exactly; any NaN may come back for a NaN code."""
    if CAST == NATIVE:
        if E5M2:
            return code.to(tl.float8e5, bitcast=True).to(tl.float32)
        else:
            return code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        if E5M2:  # the upper half of an fp16
            return (code.to(tl.int16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
        else:
            bits = code.to(tl.int32)
            magnitude = (bits & 0x7F) << 20  # bias 127 instead of 7: 2**-120 times the value
            value = magnitude.to(tl.float32, bitcast=True) * 1.329227995784916e36
            out = value.to(tl.int32, bitcast=True) | ((bits & 0x80) << 24)
            out = tl.where((bits & 0x7F) == 0x7F, 0x7FC00000, out)
            return out.to(tl.float32, bitcast=True)


@triton.jit
def store_scaled(pointers, code, byte, mask, E5M2: tl.constexpr, CAST: tl.constexpr):
    """Store code * 2**(byte - 127), rounded to the pointers' type; NaN is 0x7FC00000 or its like."""
    bits = tl.where(byte == 0, 0x00400000, byte << 23)
    bits = tl.where(byte == 255, 0x7FC00000, bits)
    value = decode(code, E5M2, CAST) * bits.to(tl.float32, bitcast=True)
    value_bits = value.to(tl.int32, bitcast=True)
    is_nan = (value_bits & 0x7FFFFFFF) > 0x7F800000
    if pointers.dtype.element_ty == tl.int16:
        # bf16 in integers: nearest even; the sum cannot overflow into the sign for finite values.
        if CAST == SOFTWARE:
            half = ((value_bits + 0x7FFF + ((value_bits >> 16) & 1)) >> 16).to(tl.int16)
        else:
            half = value.to(tl.bfloat16).to(tl.int16, bitcast=True)
        out = tl.where(is_nan, tl.full(half.shape, 0x7FC0, tl.int16), half)
    elif pointers.dtype.element_ty == tl.float16:
        half = value.to(tl.float16).to(tl.int16, bitcast=True)
        if CAST == SOFTWARE:
            # RDNA multiplies and rounds in one v_fma_mixlo_f16 that adds +0, which makes -0 positive.
            half = half | ((value_bits >> 16) & 0x8000).to(tl.int16)
        out = tl.where(is_nan, tl.full(half.shape, 0x7E00, tl.int16), half)
        out = out.to(tl.float16, bitcast=True)
    else:
        out = tl.where(is_nan, 0x7FC00000, value_bits).to(tl.float32, bitcast=True)
    tl.store(pointers, out, mask=mask)


@triton.jit(do_not_specialize=["n_blocks"])
def dequantize_flat_kernel(
    data_ptr,
    scale_ptr,
    out_ptr,
    n_blocks: tl.int64,
    E5M2: tl.constexpr,
    CAST: tl.constexpr,
    BLOCKS: tl.constexpr,
    VECTOR: tl.constexpr,
    EVICT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Contiguous data and linear scales: a flat list of blocks, BLOCKS of them per program."""
    POLICY: tl.constexpr = "evict_first" if EVICT else ""
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    block = tl.arange(0, BLOCKS)
    offset = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    mask = block < n_blocks - first
    pointers = tl.multiple_of(data_ptr + first * 32 + offset, [VECTOR, VECTOR])
    wait_for_previous_kernel(PDL)
    code = tl.load(pointers, mask=mask[:, None], other=0, eviction_policy=POLICY)
    byte = tl.load(scale_ptr + first + block, mask=mask, other=0).to(tl.int32)
    out = out_ptr + first * 32 + offset
    store_scaled(out, code, byte[:, None], mask[:, None], E5M2, CAST)


@triton.jit(
    do_not_specialize=[
        "rows",
        "columns",
        "scale_rows",
        "scale_columns",
        "row_tiles",
        "column_tiles",
    ]
)
def dequantize_tiles_kernel(
    data_ptr,
    scale_ptr,
    out_ptr,
    rows: tl.int32,
    columns: tl.int32,
    scale_rows: tl.int32,
    scale_columns: tl.int32,
    row_tiles: tl.int32,
    column_tiles: tl.int32,
    E5M2: tl.constexpr,
    CAST: tl.constexpr,
    LAYOUT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    VECTOR: tl.constexpr,
    EVICT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Contiguous data, swizzled scales, batches; ``columns`` counts blocks."""
    POLICY: tl.constexpr = "evict_first" if EVICT else ""
    program = tl.program_id(0)
    column_tile = program % column_tiles
    row_tile = program // column_tiles % row_tiles
    batch = (program // column_tiles // row_tiles).to(tl.int64)
    first_row, row, column, scale_base, scale_offset = tile_blocks(
        row_tile, column_tile, scale_columns, LAYOUT, ROWS, COLUMNS
    )
    first_column = column_tile * COLUMNS
    element = tl.arange(0, 32)
    base = ((batch * rows + first_row) * columns + first_column) * 32
    offset = ((row.to(tl.int64) * columns + column) * 32)[:, None] + element[None, :]
    scale_base += batch * scale_rows * scale_columns
    mask = (row < rows - first_row) & (column < columns - first_column)
    pointers = tl.multiple_of(data_ptr + base + offset, [VECTOR, VECTOR])
    wait_for_previous_kernel(PDL)
    code = tl.load(pointers, mask=mask[:, None], other=0, eviction_policy=POLICY)
    byte = tl.load(scale_ptr + scale_base + scale_offset, mask=mask, other=0).to(tl.int32)
    store_scaled(out_ptr + base + offset, code, byte[:, None], mask[:, None], E5M2, CAST)
