"""Every backend that runs on CPU gives the bytes of the reference."""

from __future__ import annotations

import itertools

import pytest
import torch
from cases import (
    CPU_BACKENDS,
    DTYPES,
    ELEMENTS,
    LAYOUTS,
    MODES,
    QUANTIZERS,
    cpu_ops,
    strided_inputs,
)
from hypothesis import given
from hypothesis import strategies as st

from mxfp8_ops import reference, testing
from mxfp8_ops.ops import OPERATIONS

BACKENDS = [None, *(b for b in CPU_BACKENDS if b != "torch")]


@pytest.fixture
def poisoned():
    """New tensors are filled: FP8 with NaN codes, so that an unwritten byte shows."""
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = before


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_adversarial_blocks(dtype, layout, backend, poisoned):
    op = OPERATIONS["quantize"].op(backend)
    x = testing.adversarial_blocks(dtype)
    x = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[0] % 5)).reshape(-1, 5 * 32)
    for element, mode in itertools.product(ELEMENTS, MODES):
        options = {"dtype": element, "scaling_mode": mode, "scale_layout": layout}
        result = op(x, **options)
        testing.assert_same_bytes(result, reference.quantize(x, **options), str(options))
        for output in DTYPES:
            testing.assert_same_bytes(
                OPERATIONS["dequantize"].op(backend)(*result, dtype=output, scale_layout=layout),
                reference.dequantize(*result, dtype=output, scale_layout=layout),
                f"dequantize to {output}",
            )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_16_bit_pattern_as_block_maximum(dtype, backend):
    op = OPERATIONS["quantize"].op(backend)
    x = testing.all_patterns_as_maxima(dtype)
    for element, mode in itertools.product(ELEMENTS, MODES):
        options = {"dtype": element, "scaling_mode": mode}
        testing.assert_same_bytes(op(x, **options), reference.quantize(x, **options), str(options))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_dequantize_every_code_under_every_scale(element, backend):
    codes = torch.arange(256, dtype=torch.uint8)
    data = codes.repeat(256, 1).view(element)
    scale = codes.unsqueeze(1).repeat(1, 8).view(torch.float8_e8m0fnu)
    for dtype in DTYPES:
        testing.assert_same_bytes(
            OPERATIONS["dequantize"].op(backend)(data, scale, dtype=dtype),
            reference.dequantize(data, scale, dtype=dtype),
            str(dtype),
        )


@pytest.mark.parametrize("operation", QUANTIZERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_and_offsets(layout, dtype, operation, poisoned):
    expected_of = getattr(reference, operation)
    for backend in cpu_ops(operation):
        for name, x in strided_inputs(dtype).items():
            result = OPERATIONS[operation].op(backend)(x, scale_layout=layout)
            testing.assert_same_bytes(
                result, expected_of(x.clone(), scale_layout=layout), f"{backend}: {name}"
            )


@st.composite
def problems(draw):
    """A tensor of random shape, strides, offset and special values, and arguments for it."""
    dtype = draw(st.sampled_from(DTYPES))
    dims = draw(st.integers(1, 4))
    shape = [draw(st.integers(0, 3)) for _ in range(dims - 2)]
    if dims > 1:
        shape.append(draw(st.sampled_from([0, 1, 2, 7, 31, 32, 33, 130, 257])))
    alignment = draw(st.sampled_from([None, 32, 64, 96, 128]))
    shape.append(draw(st.sampled_from([0, 32, 64, 96, 160, 288] if alignment is None else
                                      [0, 1, 31, 32, 33, 64, 95, 100, 129, 290])))  # fmt: skip
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    permutation = draw(st.permutations(range(dims)))
    step = draw(st.sampled_from([1, 1, 1, 2]))
    offset = draw(st.integers(0, 3))
    stored = [shape[p] for p in permutation]
    stored[-1] *= step
    numel = 1
    for size in stored:
        numel *= size
    magnitude = 2.0 ** draw(st.integers(-20, 12))
    flat = (torch.randn(numel + offset, generator=generator) * magnitude).to(dtype)
    for value in draw(st.lists(st.sampled_from([float("nan"), float("inf"), -0.0, 448.0, 1e-40]),
                               max_size=4)):  # fmt: skip
        if flat.numel():
            flat[int(torch.randint(0, flat.numel(), (), generator=generator))] = value
    x = flat[offset:].view(stored)[..., ::step]
    inverse = [permutation.index(d) for d in range(dims)]
    options = {
        "dtype": draw(st.sampled_from([None, *ELEMENTS])),
        "scaling_mode": draw(st.sampled_from(MODES)),
        "scale_layout": draw(st.sampled_from(LAYOUTS)),
        "alignment": alignment,
    }
    return x.permute(inverse), options


@given(problems())
def test_any_shape_stride_and_argument(problem):
    x, options = problem
    expected = reference.quantize(x.contiguous(), **options)
    layout = options["scale_layout"]
    back = reference.dequantize(*expected, scale_layout=layout)
    for backend in cpu_ops("quantize"):
        testing.assert_same_bytes(OPERATIONS["quantize"].op(backend)(x, **options), expected)
        testing.assert_same_bytes(
            OPERATIONS["dequantize"].op(backend)(*expected, scale_layout=layout), back
        )


@given(problems(), st.sampled_from(LAYOUTS))
def test_both_directions(problem, layout_t):
    x, options = problem
    if x.dim() < 2:
        return
    options["alignment"] = options["alignment"] or 32
    rowwise = reference.quantize(x, **options)
    columnwise = reference.quantize(x.mT.contiguous(), **{**options, "scale_layout": layout_t})
    for backend in cpu_ops("quantize_both"):
        testing.assert_same_bytes(
            OPERATIONS["quantize_both"].op(backend)(x, scale_layout_t=layout_t, **options),
            (*rowwise, *columnwise),
            str(backend),
        )
        testing.assert_same_bytes(
            OPERATIONS["quantize_columnwise"].op(backend)(
                x, **{**options, "scale_layout": layout_t}
            ),
            columnwise,
            str(backend),
        )


@given(
    st.lists(st.integers(0, 3), max_size=2),
    st.integers(0, 260),
    st.integers(0, 9),
    st.sampled_from(LAYOUTS),
    st.integers(0, 2**31),
)
def test_swizzle_and_back(batch, rows, columns, layout, seed):
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (*batch, rows, columns), generator=generator, dtype=torch.uint8)
    scale = raw.mT.contiguous().mT.view(torch.float8_e8m0fnu) if columns else raw.view(
        torch.float8_e8m0fnu)  # fmt: skip
    expected = reference.swizzle_scale(scale, layout)
    for backend in cpu_ops("swizzle_scale"):
        tiles = OPERATIONS["swizzle_scale"].op(backend)(scale, layout)
        testing.assert_same_bytes(tiles, expected, str(backend))
        back = OPERATIONS["unswizzle_scale"].op(backend)(tiles, rows, columns, layout)
        assert torch.equal(back.view(torch.uint8), raw)
        padding = tiles.view(torch.uint8).sum(dtype=torch.int64) - raw.sum(dtype=torch.int64)
        assert padding == 0


@given(problems())
def test_invariants(problem):
    x, options = problem
    data, scale = torch.ops.mxfp8.quantize(x, **{**options, "scale_layout": "linear"})
    assert data.is_contiguous()
    assert scale.is_contiguous()
    assert data.untyped_storage().data_ptr() != scale.untyped_storage().data_ptr() or not x.numel()
    byte = scale.view(torch.uint8)
    assert not torch.any((byte > 247) & (byte < 255))
    back = torch.ops.mxfp8.dequantize(data, scale, dtype=torch.float32)
    padded = torch.nn.functional.pad(x.float(), (0, data.shape[-1] - x.shape[-1]))
    poisoned = ~torch.isfinite(padded.reshape(*byte.shape, 32)).all(-1)
    assert torch.equal(byte == 255, poisoned)
    assert torch.equal(back.isnan(), poisoned.repeat_interleave(32, -1).reshape(back.shape))
    if options["scaling_mode"] in ("rceil", "ceil"):
        # Nothing clips: each element is off by half a step at most, of a step at most max / 4 wide.
        limit = (
            torch.exp2(byte.double() - 127) * (32768.0 if data.dtype == ELEMENTS[1] else 32.0) / 2
        )
        error = (back - padded).double().abs().reshape(*byte.shape, 32)
        assert torch.all((error <= limit.unsqueeze(-1) * 2) | poisoned.unsqueeze(-1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_codes_requantize_to_themselves(element, backend):
    finite = torch.arange(256, dtype=torch.uint8)
    values = finite.view(element).float()
    finite = finite[torch.isfinite(values)]
    x = torch.zeros(finite.numel(), 32)
    x[:, 0] = values[torch.isfinite(values)].max()
    x[:, 7] = finite.view(element).float()
    data, scale = OPERATIONS["quantize"].op(backend)(x, dtype=element)
    assert (scale.view(torch.uint8) == 127).all()
    assert torch.equal(data.view(torch.uint8)[:, 7], finite)
