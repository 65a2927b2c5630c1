"""MXFP8 in rational arithmetic: slow, and independent of every line of the package.

Numbers are ``fractions.Fraction``; the scale rules are those of docs/numerics.md, word for word.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction

EMAX = {"e4m3": 8, "e5m2": 15}
MANTISSA_BITS = {"e4m3": 3, "e5m2": 2}
MIN_EXPONENT = {"e4m3": -6, "e5m2": -14}
MAX = {"e4m3": Fraction(448), "e5m2": Fraction(57344)}
NON_FINITE = (255, [0x7F] * 32)


def fp32_bits(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def round_half_even(value: Fraction) -> int:
    below = math.floor(value)
    rest = value - below
    return below + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and below % 2 == 1))


def power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


def floor_log2(value: Fraction) -> int:
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if power(exponent) <= value else exponent - 1


def to_fp32(value: Fraction) -> Fraction:
    """Nearest fp32, ties to even, subnormals included; no overflow here."""
    if value == 0:
        return value
    step = power(max(floor_log2(value), -126) - 23)
    return round_half_even(value / step) * step


def scale_byte(amax: Fraction, mode: str, element: str) -> int:
    """Scale byte of a block whose finite largest magnitude is ``amax``."""
    if amax == 0:
        return 0
    # Biased exponent field of fp32: 0 for zero and subnormals.
    field = max(floor_log2(amax) + 127, 0) if amax >= power(-126) else 0
    mantissa_is_zero = amax == power(floor_log2(amax)) and amax >= power(-126)
    if mode == "rceil":
        inverse = to_fp32(1 / MAX[element])
        quotient = to_fp32(amax * inverse)
        if quotient == 0:
            return 0
        byte = 0
        while byte < 254 and quotient > power(byte - 127):
            byte += 1
        return byte
    if mode == "floor":
        byte = field - EMAX[element]
    elif mode == "ceil":
        byte = field + (not mantissa_is_zero) - EMAX[element]
    else:
        # Adding half a unit of the element's mantissa to the fp32 bits carries into the exponent
        # when the mantissa is in the upper half of its last step.
        bits = fp32_bits(float(amax)) + (1 << (22 - MANTISSA_BITS[element]))
        field = bits >> 23
        if field == 255:
            return 255
        byte = field - EMAX[element]
    return min(max(byte, 0), 254)


def encode(value: Fraction, negative: bool, element: str) -> int:
    """``RNE(clamp(|value|))`` with the sign bit of ``negative``."""
    magnitude = min(abs(value), MAX[element])
    bits = MANTISSA_BITS[element]
    lowest = MIN_EXPONENT[element]
    exponent = lowest if magnitude < power(lowest) else floor_log2(magnitude)
    steps = round_half_even(magnitude / power(exponent - bits))
    # A carry out of the mantissa moves into the exponent field by itself.
    code = steps + ((exponent - lowest) << bits)
    return code | (0x80 if negative else 0)


def quantize_block(values: list[float], mode: str, element: str) -> tuple[int, list[int]]:
    """Scale byte and 32 codes of one block of fp32 values."""
    if any(math.isnan(v) or math.isinf(v) for v in values):
        return NON_FINITE
    amax = max(abs(Fraction(v)) for v in values)
    byte = scale_byte(amax, mode, element)
    if byte == 255:
        return NON_FINITE
    inverse = power(127 - byte)
    codes = [encode(Fraction(v) * inverse, math.copysign(1.0, v) < 0, element) for v in values]
    return byte, codes


def decode(code: int, element: str) -> Fraction | None:
    """Value of a finite code, None for NaN and infinity."""
    magnitude, bits = code & 0x7F, MANTISSA_BITS[element]
    if (magnitude == 0x7F) if element == "e4m3" else (magnitude >= 0x7C):
        return None
    exponent, mantissa = magnitude >> bits, magnitude & ((1 << bits) - 1)
    lowest = MIN_EXPONENT[element]
    if exponent == 0:
        value = Fraction(mantissa) * power(lowest - bits)
    else:
        value = ((1 << bits) + mantissa) * power(lowest + exponent - 1 - bits)
    return -value if code & 0x80 else value
