"""Scales, FP8 codes and memory access, shared by all kernels."""

# ruff: noqa: SIM108, SIM109
# Triton compiles if statements on constants away; conditional expressions and "in" it restricts.
import triton
import triton.language as tl

OCTET_AXIS = 1 if tuple(int(n) for n in triton.__version__.split(".")[:2]) < (3, 7) else 0

MODES = {"floor": 0, "rceil": 1, "ceil": 2, "even": 3}
LAYOUTS = {"linear": 0, "swizzled_32_4_4": 1, "swizzled_8x4": 2}
CASTS = {"software": 0, "native": 1, "fnuz": 2, "satfinite": 3}

FLOOR = tl.constexpr(0)
RCEIL = tl.constexpr(1)
CEIL = tl.constexpr(2)
EVEN = tl.constexpr(3)
LINEAR = tl.constexpr(0)
SWIZZLED_32_4_4 = tl.constexpr(1)
SOFTWARE = tl.constexpr(0)
NATIVE = tl.constexpr(1)
FNUZ = tl.constexpr(2)
SATFINITE = tl.constexpr(3)


@triton.jit
def scale_byte(amax_bits, MODE: tl.constexpr, E5M2: tl.constexpr, FP32: tl.constexpr):
    """Bits of a block's largest |x| (int32, >= 0) to its scale byte (int32, 0 to 247, or 255)."""
    EMAX: tl.constexpr = 15 if E5M2 else 8
    MANTISSA_BITS: tl.constexpr = 2 if E5M2 else 3
    amax_bits = tl.minimum(amax_bits, 0x7F800000)  # NaN too: the additions below cannot overflow
    if MODE == FLOOR:
        exponent = amax_bits >> 23
    elif MODE == RCEIL:  # the maximum is 1.75 * 2**EMAX: up for mantissas above 1.75
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
def encode_software(y, E5M2: tl.constexpr):
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
def encode(x, byte, MODE: tl.constexpr, E5M2: tl.constexpr, CAST: tl.constexpr):
    """fp32 values and the scale bytes of their blocks, of broadcastable shape, to FP8 codes (uint8).

    Scaled values exceed the maximum of the element only in the floor and even modes: rceil and ceil
    scales are at least amax / max (but for one amax whose quotient 448.0001 rounds to the maximum).
    NVIDIA's conversion, SATFINITE, saturates by itself and turns NaN into 0x7F.
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
        code = encode_software(y, E5M2)
    elif CAST == FNUZ:
        y = tl.minimum(tl.maximum(y, -LIMIT), LIMIT)
        if E5M2:
            code = y.to(tl.float8e5b16).to(tl.uint8, bitcast=True)
        else:
            code = y.to(tl.float8e4b8).to(tl.uint8, bitcast=True)
        # FNUZ has no negative zero.
        code = code | ((x.to(tl.int32, bitcast=True) >> 24) & 0x80).to(tl.uint8)
    else:
        if CLAMP and CAST == NATIVE:
            y = tl.minimum(tl.maximum(y, -LIMIT), LIMIT)
        if E5M2:
            code = y.to(tl.float8e5).to(tl.uint8, bitcast=True)
        else:
            code = y.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    if CAST == NATIVE or CAST == FNUZ:
        code = tl.where(byte == 255, tl.full(code.shape, 0x7F, tl.uint8), code)
    return code


@triton.jit
def load_fp32(pointers, mask, EVICT: tl.constexpr):
    """Values as fp32; masked ones are 0. EVICT: x is read once, so it should not displace L2 lines."""
    POLICY: tl.constexpr = "evict_first" if EVICT else ""
    value = tl.load(pointers, mask=mask, other=0, eviction_policy=POLICY)
    if pointers.dtype.element_ty == tl.int16:
        return (value.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return value.to(tl.float32)


@triton.jit
def wait_for_previous_kernel(PDL: tl.constexpr):
    """With programmatic dependent launch the kernel starts early; nothing may be read before this."""
    if PDL:
        tl.extra.cuda.gdc_wait()
