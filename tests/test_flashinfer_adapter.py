"""The cute_dsl backend against an emulated FlashInfer: shapes, domain, and exactly the documented bytes."""

from __future__ import annotations

import pytest
import torch
from flashinfer_emulator import emulate_blocks
from flashinfer_stub import FlashInferStub, install, route_cpu_through_python, uninstall

from mxfp8_ops import dispatch, ops, reference, testing
from mxfp8_ops.backends import cute_dsl
from mxfp8_ops.errors import BackendUnavailableError

LAYOUTS = ("linear", "swizzled_32_4_4", "swizzled_8x4")
FLUSH_LIMIT = 448.0 * 2.0**-127
HALF_TYPES = (torch.bfloat16, torch.float16)

QUANTIZE = torch.ops.mxfp8.quantize_cute_dsl


@pytest.fixture(autouse=True)
def stub(monkeypatch):
    found = FlashInferStub("0.7.2")
    install(monkeypatch, found)
    yield found
    uninstall()


def values(*shape, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "shape",
    [
        (32,),
        (160,),
        (1, 32),
        (37, 160),
        (129, 64),
        (1, 5, 96),
        (2, 128, 64),
        (3, 2, 256, 32),
        (4, 8, 96),
    ],
)
@pytest.mark.parametrize("alignment", [None, 32, 128])
def test_shapes_and_layouts(shape, layout, alignment, stub):
    x = values(*shape)
    options = {"scale_layout": layout, "alignment": alignment}
    if cute_dsl.BACKEND.unsupported_reason("quantize", x, **options) is not None:
        assert layout != "linear"
        assert shape == (4, 8, 96), "only matrices of partial tiles are refused"
        return
    testing.assert_same_bytes(QUANTIZE(x, **options), reference.quantize(x, **options))
    assert len(stub.calls) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(0,), (0, 64), (5, 0), (2, 0, 64), (0, 3, 32)])
def test_empty_input_launches_nothing(shape, layout, stub):
    x = torch.empty(shape, dtype=torch.bfloat16)
    result = QUANTIZE(x, scale_layout=layout)
    testing.assert_same_bytes(result, reference.quantize(x, scale_layout=layout))
    assert not stub.calls


def test_views():
    base = values(64, 256)
    flat = values(1, 4096 + 8).flatten()
    for name, x in {
        "transposed": base.mT,
        "every other row": base[::2],
        "columns": base[:, 32:96],
        "expanded": base[:1].expand(7, 256),
        "permuted batch": base.view(4, 16, 256).transpose(0, 1),
        "2 bytes off": flat[1:4097].view(16, 256),
        "14 bytes off": flat[7:4103].view(16, 256),
        "16 bytes off": flat[8:4104].view(16, 256),
        "requires grad": base.clone().requires_grad_(),
    }.items():
        before = x.detach().clone()
        testing.assert_same_bytes(QUANTIZE(x), reference.quantize(x), name)
        assert torch.equal(x.detach(), before), name


@pytest.mark.parametrize(
    ("x", "options", "words"),
    [
        (values(4, 64), {"scaling_mode": "floor"}, "'rceil' only, got 'floor'"),
        (values(4, 64), {"scaling_mode": "even"}, "'rceil' only, got 'even'"),
        (
            values(4, 64),
            {"dtype": torch.float8_e5m2},
            "float8_e4m3fn only, got dtype torch.float8_e5m2",
        ),
        (values(4, 40), {"alignment": 32}, "multiple of 32 even with alignment, got K = 40"),
        (values(2, 5, 64), {"scale_layout": "swizzled_8x4"}, "multiple of 8, got M = 5"),
        (values(2, 8, 64), {"scale_layout": "swizzled_32_4_4"}, "multiple of 128, got M = 8"),
    ],
)
def test_outside_the_domain(x, options, words, stub):
    """A named call raises, automatic choice goes on."""
    with pytest.raises(BackendUnavailableError, match=words):
        QUANTIZE(x, **options)
    library = route_cpu_through_python()
    try:
        result = torch.ops.mxfp8.quantize(x, **options)
    finally:
        library._destroy()
    testing.assert_same_bytes(result, reference.quantize(x, **options))
    assert not stub.calls
    assert dispatch.unavailable_reason(cute_dsl.BACKEND, x.device) is None


@pytest.mark.parametrize(
    ("shape", "alignment", "refused"),
    [
        ((1 << 16, 1 << 15), None, True),
        (((1 << 16) - 1, 1 << 15), None, False),
        ((1 << 25, 32), 64, True),
        ((1 << 25, 32), 32, False),
    ],
)
def test_offsets_of_32_bits(shape, alignment, refused):
    x = torch.empty(1, dtype=torch.bfloat16).expand(shape)
    reason = cute_dsl.BACKEND.unsupported_reason("quantize", x, alignment=alignment)
    assert (reason is not None and "below 2**31, got 2147483648" in reason) == refused


@pytest.mark.parametrize(
    ("version", "capability", "words"),
    [
        ("0.7.0", (10, 0), "flashinfer 0.7.0 takes no float32, 0.7.1 or newer does"),
        ("0.7.1rc1", (10, 0), "takes no float32"),
        ("0.7.1", (9, 0), "float32 on compute capability 10.0"),
        ("0.7.1", (10, 0), None),
        ("0.7.4", (12, 0), None),
    ],
)
def test_float32(version, capability, words, monkeypatch):
    install(monkeypatch, FlashInferStub(version))
    monkeypatch.setattr(cute_dsl, "capability", lambda device: capability)
    x = values(9, 64, dtype=torch.float32)
    if words is None:
        testing.assert_same_bytes(QUANTIZE(x), reference.quantize(x))
        shifted = values(1, 580, dtype=torch.float32).flatten()[4:].view(9, 64)
        assert shifted.data_ptr() % 32 == 16
        testing.assert_same_bytes(QUANTIZE(shifted), reference.quantize(shifted))
    else:
        with pytest.raises(BackendUnavailableError, match=words):
            QUANTIZE(x)


def documented(x: torch.Tensor, nan_code: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The contract's bytes of blocks ``[n, 32]``, changed as documented for this backend."""
    magnitude = x.float().abs()
    nan, infinite = magnitude.isnan(), magnitude.isinf()
    data, scale = (
        t.view(torch.uint8) for t in reference.quantize(x.masked_fill(nan | infinite, 0.0))
    )
    flushed = torch.where(torch.signbit(x), 0x80, 0x00).to(torch.uint8)
    # Scale byte 0 is amax <= FLUSH_LIMIT, and in float32 the number next above it too.
    to_zero = (scale == 0) | infinite.any(-1, keepdim=True)
    data = torch.where(to_zero, flushed, data)
    data = torch.where(nan | infinite, nan_code, data).to(torch.uint8)
    top = infinite.any(-1, keepdim=True) | nan.all(-1, keepdim=True)
    return data.view(torch.float8_e4m3fn), torch.where(top, 254, scale).view(torch.float8_e8m0fnu)


def every_kind(dtype):
    parts = [testing.adversarial_blocks(dtype)]
    if dtype != torch.float32:
        parts.append(testing.all_patterns_as_maxima(dtype))
    return torch.cat(parts)


@pytest.mark.parametrize(
    ("version", "nan_code"), [("0.6.13", 0x7F), ("0.6.18", 0x7E), ("0.7.4", 0x7E)]
)
@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_deviations_are_exactly_the_documented_ones(dtype, version, nan_code, monkeypatch):
    install(monkeypatch, FlashInferStub(version))
    x = every_kind(dtype)
    result = QUANTIZE(x)
    testing.assert_same_bytes(result, documented(x, nan_code))

    amax = x.float().abs().amax(-1)  # NaN if the block has one
    exact = (amax == 0) | ((amax > FLUSH_LIMIT) & amax.isfinite())
    contract = reference.quantize(x)
    testing.assert_same_bytes([t[exact] for t in result], [t[exact] for t in contract])
    tiny = (amax > 0) & (amax <= FLUSH_LIMIT)
    assert bool(tiny.any()) == (dtype == torch.bfloat16), "float16 has no such numbers"
    testing.assert_same_bytes(result[1][tiny], contract[1][tiny])


def test_deviations_of_float32(monkeypatch):
    install(monkeypatch, FlashInferStub("0.7.1"))
    x = every_kind(torch.float32)
    testing.assert_same_bytes(QUANTIZE(x), documented(x, 0x7E))


def test_every_16_bit_pattern_as_an_element():
    """Under a neighbour that fixes the scale, every smaller pattern is cast as by the reference."""
    patterns = testing.all_patterns(torch.bfloat16).flatten()
    for exponent in range(1, 255, 11):
        head = torch.tensor(exponent << 7, dtype=torch.int16).view(torch.bfloat16)
        smaller = patterns[patterns.float().abs() <= head.float()]
        smaller = torch.nn.functional.pad(smaller, (0, -smaller.numel() % 31)).reshape(-1, 31)
        x = torch.cat([head.expand(smaller.shape[0], 1), smaller], 1)
        if head.float() > FLUSH_LIMIT:
            testing.assert_same_bytes(QUANTIZE(x), reference.quantize(x), str(exponent))
        else:
            testing.assert_same_bytes(QUANTIZE(x), documented(x, 0x7E), str(exponent))


def test_strict_returns_the_contract_for_deviating_blocks(monkeypatch, stub):
    monkeypatch.setattr(dispatch, "SETTINGS", dispatch.Settings(backend=None, strict=True))
    kernel = dispatch._dispatcher_kernel(ops.OPERATIONS["quantize"])
    x = every_kind(torch.bfloat16)
    testing.assert_same_bytes(kernel(x), reference.quantize(x))
    assert not stub.calls


def test_scales_before_0_6_13_differ_for_tiny_blocks_only():
    """Why that is the minimum."""
    x = every_kind(torch.bfloat16)
    old, new = (emulate_blocks(x, version)[1].flatten() for version in ((0, 6, 12), (0, 6, 13)))
    amax = x.float().abs().nan_to_num(0.0, 0.0, 0.0).amax(-1)
    tiny = (amax > 0) & (amax <= FLUSH_LIMIT)
    differs = old != new
    assert differs.any()
    assert not (differs & ~tiny & x.float().isfinite().all(-1)).any()
