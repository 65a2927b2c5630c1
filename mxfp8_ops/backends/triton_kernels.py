"""Device code of the triton backend. Import it lazily: it needs the package ``triton``.

Everything that decides a scale is integer arithmetic on fp32 bits. Ordered as integers, NaN bits >
infinity bits > finite bits, so an integer maximum finds non-finite blocks whatever the target does
with NaN, and no result depends on log2, exp2 or the flushing of subnormals.

Pointers are int16 (for bf16), fp16, fp32 and uint8: Triton has no float8_e8m0fnu, and the
interpreter's own conversion from bf16 damages subnormals.
"""

# ruff: noqa: SIM108, SIM109
# Triton compiles if statements on constants away; conditional expressions and "in" it restricts.
# No "from __future__ import annotations" here: Triton reads the annotations of kernel arguments.
import triton
import triton.language as tl

OCTET_AXIS = 1 if tuple(int(n) for n in triton.__version__.split(".")[:2]) < (3, 7) else 0

MODES = {"floor": 0, "rceil": 1, "ceil": 2, "even": 3}
LAYOUTS = {"linear": 0, "swizzled_32_4_4": 1, "swizzled_8x4": 2}
CASTS = {"software": 0, "native": 1, "fnuz": 2}

FLOOR = tl.constexpr(0)
RCEIL = tl.constexpr(1)
CEIL = tl.constexpr(2)
EVEN = tl.constexpr(3)
LINEAR = tl.constexpr(0)
SWIZZLED_32_4_4 = tl.constexpr(1)
SOFTWARE = tl.constexpr(0)
NATIVE = tl.constexpr(1)
FNUZ = tl.constexpr(2)


@triton.jit
def _scale_byte(amax_bits, MODE: tl.constexpr, E5M2: tl.constexpr, FP32: tl.constexpr):
    """Bits of a block's largest |x| (int32, >= 0) to its scale byte (int32, 0 to 247, or 255)."""
    EMAX: tl.constexpr = 15 if E5M2 else 8
    MANTISSA_BITS: tl.constexpr = 2 if E5M2 else 3
    amax_bits = tl.minimum(amax_bits, 0x7F800000)  # NaN too: the additions below cannot overflow
    if MODE == FLOOR:
        exponent = amax_bits >> 23
    elif (
        MODE == RCEIL
    ):  # the maximum of both formats is 1.75 * 2**EMAX: up for mantissas above 1.75
        exponent = (amax_bits + 0x1FFFFF) >> 23
        if FP32:  # amax * fp32(1 / max) rounds down to 2**-127 here; 16-bit inputs cannot reach it
            exponent = tl.where(amax_bits == ((EMAX << 23) | 0x600001), 0, exponent)
    elif MODE == CEIL:
        exponent = (amax_bits + 0x7FFFFF) >> 23
    else:
        exponent = (amax_bits + (1 << (22 - MANTISSA_BITS))) >> 23
    if MODE == EVEN:
        not_finite = exponent >= 255
    else:
        not_finite = amax_bits == 0x7F800000
    return tl.where(not_finite, 255, tl.maximum(exponent - EMAX, 0))


@triton.jit
def _encode_software(y, E5M2: tl.constexpr):
    """fp32 to FP8 codes in integers: nearest even, saturating, NaN to 0x7F.

    Normal results: round the fp32 bits to the shorter mantissa and change the exponent bias. Subnormal
    results: add the power of two whose last mantissa bit is worth the smallest subnormal; the addition
    rounds, and leaves the code in the low bits.
    """
    SHIFT: tl.constexpr = 21 if E5M2 else 20
    REBIAS: tl.constexpr = (112 << 2) if E5M2 else (120 << 3)
    MIN_NORMAL: tl.constexpr = 0x38800000 if E5M2 else 0x3C800000
    MAGIC: tl.constexpr = 0x43000000 if E5M2 else 0x46800000
    MAX_CODE: tl.constexpr = 0x7B if E5M2 else 0x7E
    bits = y.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    odd = (magnitude >> SHIFT) & 1
    normal = ((magnitude + ((1 << (SHIFT - 1)) - 1) + odd) >> SHIFT) - REBIAS
    magic = tl.full(magnitude.shape, MAGIC, tl.int32).to(tl.float32, bitcast=True)
    subnormal = (magnitude.to(tl.float32, bitcast=True) + magic).to(tl.int32, bitcast=True) - MAGIC
    code = tl.where(magnitude < MIN_NORMAL, subnormal, tl.minimum(normal, MAX_CODE))
    code = code | ((bits >> 24) & 0x80)
    return tl.where(magnitude > 0x7F800000, 0x7F, code).to(tl.uint8)


@triton.jit
def _encode(x, byte, MODE: tl.constexpr, E5M2: tl.constexpr, CAST: tl.constexpr):
    """fp32 values and the scale bytes of their blocks, of broadcastable shape, to FP8 codes (uint8).

    Scaled values exceed the maximum of the element only in the floor and even modes: rceil and ceil
    scales are at least amax / max (but for one amax whose quotient 448.0001 rounds to the maximum).
    """
    CLAMP: tl.constexpr = MODE == FLOOR or MODE == EVEN
    LIMIT: tl.constexpr = (57344.0 if E5M2 else 448.0) * (0.5 if CAST == FNUZ else 1.0)
    if CAST == FNUZ:
        # The exponent bias of the FNUZ formats is one higher: the code of v is the FNUZ code of v / 2.
        bits = tl.where(byte == 255, 0, (253 - byte) << 23)
    else:
        bits = tl.where(byte == 255, 0x7FC00000, (254 - byte) << 23)
    y = x * bits.to(tl.float32, bitcast=True)
    if CAST == SOFTWARE:
        code = _encode_software(y, E5M2)
    else:
        if CLAMP or CAST == FNUZ:
            y = tl.minimum(tl.maximum(y, -LIMIT), LIMIT)
        if CAST == NATIVE:
            if E5M2:
                code = y.to(tl.float8e5).to(tl.uint8, bitcast=True)
            else:
                code = y.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        else:
            if E5M2:
                code = y.to(tl.float8e5b16).to(tl.uint8, bitcast=True)
            else:
                code = y.to(tl.float8e4b8).to(tl.uint8, bitcast=True)
            # FNUZ has no negative zero.
            code = code | ((x.to(tl.int32, bitcast=True) >> 24) & 0x80).to(tl.uint8)
        code = tl.where(byte == 255, tl.full(code.shape, 0x7F, tl.uint8), code)
    return code


@triton.jit
def _load_fp32(pointers, mask, EVICT: tl.constexpr):
    """Values as fp32; masked ones are 0. EVICT: x is read once, so it should not displace L2 lines."""
    POLICY: tl.constexpr = "evict_first" if EVICT else ""
    value = tl.load(pointers, mask=mask, other=0, eviction_policy=POLICY)
    if pointers.dtype.element_ty == tl.int16:
        return (value.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return value.to(tl.float32)


@triton.jit
def _wait_for_previous_kernel(PDL: tl.constexpr):
    """With programmatic dependent launch the kernel starts early; nothing may be read before this."""
    if PDL:
        tl.extra.cuda.gdc_wait()


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
    _wait_for_previous_kernel(PDL)
    x = _load_fp32(x_ptr + first * 32 + offset, mask[:, None], EVICT)
    amax_bits = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    byte = _scale_byte(amax_bits, MODE, E5M2, x_ptr.dtype.element_ty == tl.float32)
    code = _encode(x, byte[:, None], MODE, E5M2, CAST)
    # Codes per thread: 8 make each load of 16-bit values one contiguous run of a warp.
    pointers = tl.multiple_of(data_ptr + first * 32 + offset, [VECTOR, VECTOR])
    tl.store(pointers, code, mask=mask[:, None])
    tl.store(scale_ptr + first + block, byte.to(tl.uint8), mask=mask)


@triton.jit
def _tile(
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
    first_row, row, column, scale_base, scale_offset = _tile(
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
    _wait_for_previous_kernel(PDL)
    x = _load_fp32(x_ptr + x_offset[:, None] + element[None, :], x_mask, EVICT)
    amax_bits = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    byte = _scale_byte(amax_bits, MODE, E5M2, x_ptr.dtype.element_ty == tl.float32)
    code = _encode(x, byte[:, None], MODE, E5M2, CAST)

    data_offset = (row.to(tl.int64) * data_columns + column) * 32
    data_pointers = data_ptr + data_base * 32 + data_offset[:, None] + element[None, :]
    data_mask = in_rows & (column < data_columns - first_column)
    tl.store(tl.multiple_of(data_pointers, [VECTOR, VECTOR]), code, mask=data_mask[:, None])
    scale_mask = (row < scale_rows - first_row) & (column < scale_columns - first_column)
    tl.store(scale_ptr + scale_base + scale_offset, byte.to(tl.uint8), mask=scale_mask)


@triton.jit
def _scale_place(row, column, scale_columns, LAYOUT: tl.constexpr):
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
    _wait_for_previous_kernel(PDL)
    x = _load_fp32(x_ptr + x_offset, in_rows & in_columns[None, None, :], EVICT)
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF

    octet_bits = tl.max(bits, axis=AXIS)
    amax_bits = tl.max(tl.reshape(octet_bits, [BLOCKS_T, 4, COLUMNS]), axis=1)
    byte_t = _scale_byte(amax_bits, MODE, E5M2, FP32)
    spread = tl.broadcast_to(byte_t[:, None, :], [BLOCKS_T, 4, COLUMNS])
    code_t = _encode(
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
    place_t = _scale_place(row_t[None, :], column_t[:, None], scale_t_columns, LAYOUT_T)
    mask_t = (row_t < scale_t_rows)[None, :] & (column_t < scale_t_columns)[:, None]
    tl.store(scale_t_ptr + place_t, byte_t.to(tl.uint8), mask=mask_t)

    if BOTH:
        block_bits = tl.reshape(bits, [D0, D1, BLOCKS, 32])
        byte = _scale_byte(tl.max(block_bits, axis=3), MODE, E5M2, FP32)
        spread_row = tl.broadcast_to(byte[:, :, :, None], [D0, D1, BLOCKS, 32])
        spread_row = tl.reshape(spread_row, [D0, D1, COLUMNS])
        code = _encode(x, spread_row, MODE, E5M2, CAST)
        data_ptr += (batch * rows + first_row) * data_columns * 32 + first_column
        data_offset = row.to(tl.int64) * data_columns * 32 + column[None, None, :]
        in_data = column // 32 < data_columns - first_column // 32
        pointers = tl.multiple_of(data_ptr + data_offset, [VECTOR, VECTOR, VECTOR])
        tl.store(pointers, code, mask=in_rows & in_data[None, None, :])
        block_column = first_column // 32 + tl.arange(0, BLOCKS)
        scale_row = first_row + row
        scale_ptr += batch * scale_rows * scale_columns
        place = _scale_place(scale_row, block_column[None, None, :], scale_columns, LAYOUT)
        mask = (scale_row < scale_rows) & (block_column < scale_columns)[None, None, :]
        tl.store(scale_ptr + place, byte.to(tl.uint8), mask=mask)


@triton.jit
def _decode(code, E5M2: tl.constexpr, CAST: tl.constexpr):
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
def _store_scaled(pointers, code, byte, mask, E5M2: tl.constexpr, CAST: tl.constexpr):
    """Store code * 2**(byte - 127), rounded to the pointers' type; NaN is 0x7FC00000 or its like."""
    bits = tl.where(byte == 0, 0x00400000, byte << 23)
    bits = tl.where(byte == 255, 0x7FC00000, bits)
    value = _decode(code, E5M2, CAST) * bits.to(tl.float32, bitcast=True)
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
    _wait_for_previous_kernel(PDL)
    code = tl.load(pointers, mask=mask[:, None], other=0, eviction_policy=POLICY)
    byte = tl.load(scale_ptr + first + block, mask=mask, other=0).to(tl.int32)
    out = out_ptr + first * 32 + offset
    _store_scaled(out, code, byte[:, None], mask[:, None], E5M2, CAST)


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
    first_row, row, column, scale_base, scale_offset = _tile(
        row_tile, column_tile, scale_columns, LAYOUT, ROWS, COLUMNS
    )
    first_column = column_tile * COLUMNS
    element = tl.arange(0, 32)
    base = ((batch * rows + first_row) * columns + first_column) * 32
    offset = ((row.to(tl.int64) * columns + column) * 32)[:, None] + element[None, :]
    scale_base += batch * scale_rows * scale_columns
    mask = (row < rows - first_row) & (column < columns - first_column)
    pointers = tl.multiple_of(data_ptr + base + offset, [VECTOR, VECTOR])
    _wait_for_previous_kernel(PDL)
    code = tl.load(pointers, mask=mask[:, None], other=0, eviction_policy=POLICY)
    byte = tl.load(scale_ptr + scale_base + scale_offset, mask=mask, other=0).to(tl.int32)
    _store_scaled(out_ptr + base + offset, code, byte[:, None], mask[:, None], E5M2, CAST)
