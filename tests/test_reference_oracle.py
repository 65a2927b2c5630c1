"""The reference against exact rational arithmetic and against ml_dtypes."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import oracle
import pytest
import torch

from mxfp8_ops import reference, testing
from mxfp8_ops.formats import ELEMENT_FORMATS, SCALING_MODES

ELEMENTS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ALL_MODES = pytest.mark.parametrize("mode", SCALING_MODES)
ALL_ELEMENTS = pytest.mark.parametrize("element", ELEMENTS)


def quantize(x: torch.Tensor, mode: str, element: str) -> tuple[np.ndarray, np.ndarray]:
    data, scale = reference.quantize(x, dtype=ELEMENTS[element], scaling_mode=mode)
    return data.view(torch.uint8).numpy(), scale.view(torch.uint8).numpy()


@ALL_MODES
@ALL_ELEMENTS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_blocks_agree_with_rational_arithmetic(dtype, mode, element):
    pool = testing.adversarial_blocks(dtype, random=400, seed=1)
    pick = torch.randperm(pool.shape[0], generator=torch.Generator().manual_seed(2))[:150]
    edges = testing.edge_blocks(dtype)
    x = torch.cat([pool[pick], edges[:30], edges[30 :: max(1, edges.shape[0] // 60)]])
    data, scale = quantize(x, mode, element)
    for row, values in enumerate(x.float().tolist()):
        byte, codes = oracle.quantize_block(values, mode, element)
        assert scale[row, 0] == byte, (row, values)
        assert data[row].tolist() == codes, (row, values)


def exact_scale_bytes(amax: np.ndarray, mode: str, element: str) -> np.ndarray:
    """The rules on float64, which holds every fp32 product and quotient here exactly or rounds last.

    Cross-checked with the rational oracle below; vectorised so that whole mantissas can be swept.
    """
    emax, maximum = oracle.EMAX[element], float(oracle.MAX[element])
    bits = amax.view(np.uint32).astype(np.int64)
    field, mantissa = bits >> 23, bits & 0x7FFFFF
    if mode == "rceil":
        quotient = (amax.astype(np.float64) * np.float64(np.float32(1 / maximum))).astype(
            np.float32
        )
        d = quotient.view(np.uint32).astype(np.int64)
        ed, md = d >> 23, d & 0x7FFFFF
        byte = ed + np.where(ed == 0, md > 0x400000, md != 0)
    elif mode == "floor":
        byte = field - emax
    elif mode == "ceil":
        byte = field + (mantissa != 0) - emax
    else:
        rounded = (bits + (1 << (22 - oracle.MANTISSA_BITS[element]))) >> 23
        return np.where(rounded == 255, 255, np.clip(rounded - emax, 0, 254))
    return np.clip(byte, 0, 254)


@ALL_MODES
@ALL_ELEMENTS
def test_scale_rule_on_every_mantissa(mode, element):
    mantissas = np.arange(1 << 23, dtype=np.uint32)
    for exponent in (0, 1, 8, 9, 15, 16, 127, 254):
        amax_bits = (np.uint32(exponent) << 23) | mantissas
        got = reference.scale_byte(
            torch.from_numpy(amax_bits.view(np.int32)), ELEMENT_FORMATS[ELEMENTS[element]], mode
        ).numpy()
        expected = exact_scale_bytes(amax_bits.view(np.float32), mode, element)
        assert np.array_equal(got, expected), exponent


@ALL_MODES
@ALL_ELEMENTS
def test_scale_rule_beside_every_boundary(mode, element):
    centres = [
        significand * 2.0**k for k in range(-149, 128) for significand in (1.0, 1.75, 1.875, 1.9375)
    ]
    values = np.array([c for c in centres if c < 3.4e38], dtype=np.float32)
    bits = values.view(np.uint32).astype(np.int64)
    special = [0, 1, 0x7F7FFFFF, 0x04600000, 0x04600001, 0x04600002, 0x07E00000, 0x07E00001]
    amax_bits = np.unique(
        np.clip(np.concatenate([bits - 1, bits, bits + 1, special]), 0, 0x7F7FFFFF)
    )
    amax = amax_bits.astype(np.uint32).view(np.float32)
    got = reference.scale_byte(
        torch.from_numpy(amax.view(np.int32)), ELEMENT_FORMATS[ELEMENTS[element]], mode
    ).numpy()
    assert np.array_equal(got, exact_scale_bytes(amax, mode, element))
    exact = [oracle.scale_byte(Fraction(float(a)), mode, element) for a in amax]
    assert got.tolist() == exact


@ALL_MODES
@ALL_ELEMENTS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_16_bit_pattern_as_block_maximum(dtype, mode, element):
    x = testing.all_patterns_as_maxima(dtype)
    data, scale = quantize(x, mode, element)
    amax = x.float().abs().amax(1).numpy()
    finite = np.isfinite(amax)
    expected = np.where(finite, exact_scale_bytes(np.where(finite, amax, 1), mode, element), 255)
    assert np.array_equal(scale[:, 0], expected)
    usable = expected != 255
    scaled = x.double().numpy()[usable] * np.exp2(127.0 - expected[usable, None].astype(np.float64))
    assert np.array_equal(data[usable], cast_with_ml_dtypes(scaled, element))
    assert (data[~usable] == 0x7F).all()


def cast_with_ml_dtypes(values: np.ndarray, element: str) -> np.ndarray:
    """Clamp, then the independent cast. Its e4m3fn turns overflow into NaN, so the clamp comes first."""
    maximum = float(oracle.MAX[element])
    target = ml_dtypes.float8_e4m3fn if element == "e4m3" else ml_dtypes.float8_e5m2
    return np.clip(values, -maximum, maximum).astype(target).view(np.uint8)


@ALL_ELEMENTS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_16_bit_pattern_as_element_under_every_scale(dtype, element):
    patterns = testing.all_patterns(dtype).reshape(-1)
    patterns = patterns[torch.isfinite(patterns.float())]
    magnitudes = patterns.float().abs()
    checked = 0
    for byte in range(0, 248):
        # A block maximum that gives this byte, with the elements that may stand beside it.
        head = float(np.ldexp(float(oracle.MAX[element]), byte - 127))
        if head > torch.finfo(dtype).max or torch.tensor(head).to(dtype).float().item() != head:
            continue
        tail = patterns[magnitudes <= head]
        tail = torch.nn.functional.pad(tail, (0, -tail.numel() % 31)).reshape(-1, 31)
        x = torch.cat([torch.full((tail.shape[0], 1), head).to(dtype), tail], 1)
        data, scale = quantize(x, "rceil", element)
        assert (scale == byte).all()
        scaled = x.double().numpy() * np.exp2(127.0 - byte)
        assert np.array_equal(data, cast_with_ml_dtypes(scaled, element)), byte
        checked += 1
    assert checked > (20 if dtype == torch.float16 else 200)


@ALL_ELEMENTS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dequantize_every_code_under_every_scale(dtype, element):
    codes = torch.arange(256, dtype=torch.uint8)
    data = codes.repeat(256, 1).view(ELEMENTS[element])
    scale = codes.unsqueeze(1).repeat(1, 8).view(torch.float8_e8m0fnu)
    got = reference.dequantize(data, scale, dtype=dtype)
    ml = ml_dtypes.float8_e4m3fn if element == "e4m3" else ml_dtypes.float8_e5m2
    values = np.arange(256, dtype=np.uint8).view(ml).astype(np.float64)
    factors = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    with np.errstate(all="ignore"):
        # One rounding to fp32, then one to the output, as the rule says.
        product = (factors[:, None] * values[None, :]).astype(np.float32)
        expected = torch.from_numpy(product).to(torch.float64)
        numpy_type = {torch.bfloat16: ml_dtypes.bfloat16, torch.float16: np.float16}.get(
            dtype, np.float32
        )
        rounded = product.astype(numpy_type)
    raw = rounded.view(np.uint32 if dtype == torch.float32 else np.uint16).astype(np.int64)
    quiet = {torch.bfloat16: 0x7FC0, torch.float16: 0x7E00, torch.float32: 0x7FC00000}[dtype]
    raw = np.where(np.isnan(expected.numpy()), quiet, raw)
    integer = torch.int32 if dtype == torch.float32 else torch.int16
    mask = 0xFFFFFFFF if dtype == torch.float32 else 0xFFFF
    assert np.array_equal(got.view(integer).numpy().astype(np.int64) & mask, raw)


@ALL_ELEMENTS
def test_decoder_of_the_oracle_agrees_with_torch(element):
    values = torch.arange(256, dtype=torch.uint8).view(ELEMENTS[element]).double().tolist()
    for code, value in enumerate(values):
        exact = oracle.decode(code, element)
        if exact is not None:
            assert float(exact) == value


@pytest.mark.parametrize(
    ("amax", "byte"),
    [
        (0.0, 0),
        (448.0, 127),
        (float(np.nextafter(np.float32(448), np.float32(1e9))), 128),
        (450.0, 128),
        (224.0, 126),
        (1.75, 119),
        (1.0, 119),
        (1.9375, 120),
        (512.0, 128),
        (2.0**-133, 0),
        (1.75 * 2.0**-119, 0),
        (1.7578125 * 2.0**-119, 1),
        (3.4028234663852886e38, 247),
        (float("inf"), 255),
        (float("nan"), 255),
        (1.2 * 448, 128),
    ],
)
def test_known_scale_bytes(amax, byte):
    x = torch.zeros(1, 32)
    x[0, 3] = amax
    _, scale = quantize(x, "rceil", "e4m3")
    assert scale[0, 0] == byte


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (256.0, 0x78), (288.0, 0x79), (320.0, 0x7A), (384.0, 0x7C), (416.0, 0x7D), (448.0, 0x7E),
        (17.0, 0x58), (1.0625 + 2.0**-20, 0x39), (126.24, 0x70), (2.0**-9, 0x01), (2.0**-10, 0x00),
        (3 * 2.0**-10, 0x02), (-0.0, 0x80), (0.01, 0x05),
    ],
)  # fmt: skip
def test_known_codes(value, code):
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 1] = 448.0, value
    data, _ = quantize(x, "rceil", "e4m3")
    assert data[0, 1] == code
