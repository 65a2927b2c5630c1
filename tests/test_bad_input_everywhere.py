"""Random bad calls of every op: one exception type and one sentence, however the op is reached."""

from __future__ import annotations

import pytest
import torch
from cases import CPU_BACKENDS, LAYOUTS, MODES, QUANTIZERS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import mxfp8_ops
from mxfp8_ops.ops import OPERATIONS

E8 = torch.float8_e8m0fnu
DTYPES = (
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, E8, torch.bool, torch.complex64,
)  # fmt: skip
SIZES = st.sampled_from([0, 1, 2, 4, 8, 31, 32, 33, 64, 96, 128])
SHAPES = st.lists(SIZES, max_size=3).map(tuple)
NAMES = {
    "scaling_mode": (*MODES, "RCEIL", "", "up"),
    "scale_layout": (*LAYOUTS, "Linear", "swizzled", ""),
    "scale_layout_t": (None, *LAYOUTS, "row"),
}


def zeros(shape, dtype):
    if dtype.itemsize == 1:
        return torch.zeros(shape, dtype=torch.uint8).view(dtype)
    return torch.zeros(shape, dtype=dtype)


def tensors(dtypes=DTYPES):
    return st.builds(zeros, SHAPES, st.sampled_from(dtypes))


@st.composite
def calls(draw):
    """(operation, positional arguments, keyword arguments): any values of the types of the schema."""
    operation = draw(st.sampled_from(list(OPERATIONS)))
    layout = draw(st.sampled_from(NAMES["scale_layout"]))
    if operation in QUANTIZERS:
        keywords = {
            "dtype": draw(st.sampled_from((None, *DTYPES))),
            "scaling_mode": draw(st.sampled_from(NAMES["scaling_mode"])),
            "scale_layout": layout,
            "alignment": draw(st.sampled_from([None, None, 32, 64, 0, -32, 1, 33, 2**40])),
        }
        if operation == "quantize_both":
            keywords["scale_layout_t"] = draw(st.sampled_from(NAMES["scale_layout_t"]))
        keep = draw(st.sets(st.sampled_from(sorted(keywords))))
        return operation, (draw(tensors()),), {k: v for k, v in keywords.items() if k in keep}
    scale = draw(tensors(dtypes=(E8, E8, E8, torch.uint8)))
    if operation == "dequantize":
        data = draw(tensors(dtypes=(torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8)))
        keywords = {"dtype": draw(st.sampled_from((None, *DTYPES))), "scale_layout": layout}
        return operation, (data, scale), keywords
    if operation == "swizzle_scale":
        return operation, (scale, layout), {}
    sizes = st.sampled_from([-1, 0, 1, 2, 4, 8, 128, 2**40])
    return operation, (scale, draw(sizes), draw(sizes), layout), {}


def outcome(call, *args, **kwargs) -> tuple[type, str] | None:
    """Type and text of what the call raises, None where it returns."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)
    return None


def to_meta(arguments):
    return tuple(a.to("meta") if isinstance(a, torch.Tensor) else a for a in arguments)


def is_huge(args, kwargs) -> bool:
    """Valid, but of more memory than a test should have."""
    return any(isinstance(v, int) and v == 2**40 for v in (*args, *kwargs.values()))


@given(calls())
@settings(max_examples=400)
def test_eager_named_meta_and_fake(call):
    operation, args, kwargs = call
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = tuple(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args)
        expected = outcome(OPERATIONS[operation].op(), *fakes, **kwargs)
        for backend in OPERATIONS[operation].backends:
            assert outcome(OPERATIONS[operation].op(backend), *fakes, **kwargs) == expected
    if expected is None and is_huge(args, kwargs):
        return
    if expected is not None:
        assert expected[0] is ValueError, expected
        assert "\n" not in expected[1]
        assert len(expected[1]) > 20
    for backend in (None, *(b for b in OPERATIONS[operation].backends if b in CPU_BACKENDS)):
        assert outcome(OPERATIONS[operation].op(backend), *args, **kwargs) == expected, backend
    assert outcome(OPERATIONS[operation].op(), *to_meta(args), **kwargs) == expected


@given(calls())
@settings(max_examples=40)
def test_while_tracing(call):
    """The error of torch.compile holds the sentence; a call that eager accepts compiles."""
    operation, args, kwargs = call
    if is_huge(args, kwargs):
        return
    expected = outcome(OPERATIONS[operation].op(), *args, **kwargs)
    torch._dynamo.reset()
    op = OPERATIONS[operation].op()
    traced = outcome(
        torch.compile(lambda: op(*args, **kwargs), fullgraph=True, backend="aot_eager")
    )
    if expected is None:
        assert traced is None
    else:
        assert traced is not None
        assert expected[1] in traced[1], traced[1]


@pytest.mark.parametrize("backend", [None, *CPU_BACKENDS])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input", None),
        ("input", 1.0),
        ("input", [1.0, 2.0]),
        ("dtype", "float8_e4m3fn"),
        ("scaling_mode", None),
        ("scaling_mode", torch.float32),
        ("scale_layout", 1),
        ("alignment", "32"),
        ("alignment", 32.5),
    ],
    ids=str,
)
def test_values_of_a_wrong_type(name, value, backend):
    """torch checks most of them against the schema, with words of its own that name the argument."""
    arguments = {"input": torch.zeros(2, 32), name: value}
    with pytest.raises((TypeError, ValueError, RuntimeError), match=rf"\b{name}\b"):
        mxfp8_ops.quantize(arguments.pop("input"), **arguments, backend=backend)


@pytest.mark.parametrize("alignment", [2**62, 2**63 - 32, 2**63 - 64])
@pytest.mark.parametrize("columns", [64, 96, 128])
def test_padding_beyond_all_memory(columns, alignment):
    """A sum that does not fit 64 bits gives no empty result."""
    for backend in CPU_BACKENDS:
        with pytest.raises(RuntimeError):
            mxfp8_ops.quantize(torch.zeros(8, columns), alignment=alignment, backend=backend)


@pytest.mark.parametrize("backend", [None, *CPU_BACKENDS])
def test_none_for_a_tensor(backend):
    data, scale = mxfp8_ops.quantize(torch.zeros(2, 32))
    for call, name in (
        (lambda: OPERATIONS["quantize_both"].op(backend)(None), "input"),
        (lambda: OPERATIONS["dequantize"].op(backend)(None, scale), "data"),
        (lambda: OPERATIONS["dequantize"].op(backend)(data, None), "scale"),
        (lambda: OPERATIONS["swizzle_scale"].op(backend)(None, "linear"), "scale"),
        (lambda: OPERATIONS["unswizzle_scale"].op(backend)(None, 2, 1, "linear"), "scale"),
    ):
        assert outcome(call) == (ValueError, f"{name} must be a torch.Tensor, got None")
