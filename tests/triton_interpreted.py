"""The triton backend in Triton's interpreter against the reference; run by test_triton_interpreter.py.

A process of its own: TRITON_INTERPRET must be set before the kernels are defined. Usage:
``python triton_interpreted.py SECTION``; prints the number of compared calls.
"""

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch

from mxfp8_ops import formats, reference, testing
from mxfp8_ops.backends import triton as backend
from mxfp8_ops.backends import triton_launch, triton_plans

INPUTS = formats.INPUT_DTYPES
ELEMENTS = tuple(formats.ELEMENT_FORMATS)
LAYOUTS = tuple(formats.SCALE_LAYOUTS)
MODES = formats.SCALING_MODES

_allocate = triton_launch.allocate
launch = backend.BACKEND.launchers


def _allocate_poisoned(*args):
    outputs = _allocate(*args)
    for output in outputs:
        output.view(torch.uint8).fill_(0xFF)
    return outputs


def _large_programs() -> None:
    """The interpreter takes as long for a small program as for a large one."""
    sizes = {"flat": (1, 8192), "dequantize_flat": (1, 8192)}
    for kernel, (rows, columns) in sizes.items():
        triton_plans.CONFIGS[kernel] = ((1 << 62, triton_plans.Config(rows, columns, 4)),)


def same(actual, expected, context) -> int:
    testing.assert_same_bytes(actual, expected, str(context))
    return 1


def numerics() -> int:
    """All 16-bit patterns, ties, boundaries, subnormals and non-finite blocks, in the flat kernels."""
    count = 0
    for input_dtype in INPUTS:
        x = testing.adversarial_blocks(input_dtype, random=512)
        for element in ELEMENTS:
            for mode in MODES:
                options = {"dtype": element, "scaling_mode": mode}
                expected = reference.quantize(x, **options)
                count += same(launch["quantize"](x, **options), expected, (x.dtype, options))
    return count


def maxima() -> int:
    """Every sixteenth 16-bit pattern as the maximum of a block."""
    count = 0
    for input_dtype in (torch.bfloat16, torch.float16):
        x = testing.all_patterns_as_maxima(input_dtype)[::16]
        for mode in MODES:
            actual = launch["quantize"](x, scaling_mode=mode)
            count += same(actual, reference.quantize(x, scaling_mode=mode), (input_dtype, mode))
    return count


def dequantize() -> int:
    """Every scale byte with every code, and every layout."""
    byte = torch.arange(256, dtype=torch.uint8).reshape(256, 1).repeat(1, 8)
    code = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    count = 0
    for element in ELEMENTS:
        data, scale = code.view(element), byte.view(formats.SCALE_DTYPE)
        for dtype in INPUTS:
            for layout in LAYOUTS:
                stored = reference.swizzle_scale(scale, layout)
                options = {"dtype": dtype, "scale_layout": layout}
                actual = launch["dequantize"](data, stored, **options)
                expected = reference.dequantize(data, stored, **options)
                count += same(actual, expected, (element, options))
    return count


def _inputs():
    generator = torch.Generator().manual_seed(0)

    def make(*shape):
        x = torch.randn(shape, generator=generator) * 100
        x.view(-1)[:: 37 * 32] = float("nan")
        return x

    yield "ragged rows", make(130, 96), None
    yield "one row", make(96), None
    yield "padded", make(3, 40), 128
    yield "padded row", make(33), 64
    yield "batches", make(2, 3, 5, 64), None
    yield "padded batches", make(2, 9, 72), 32
    yield "row stride", make(10, 256)[:, 64:160], None
    yield "odd row stride", make(10, 99)[:, 1:97], None
    yield "odd offset", make(6 * 64 + 3)[3:].view(6, 64), None
    yield "every second row", make(12, 64)[::2], None
    yield "last dimension strided", make(6, 128)[:, ::2], None
    yield "transposed", make(64, 32).t(), None
    yield "expanded", make(1, 64).expand(5, 64), None
    yield "batch stride", make(3, 8, 64)[:, 1:6], None
    yield "swapped batches", make(2, 3, 4, 32).transpose(0, 1), None


def shapes() -> int:
    """Strides, offsets, padding and batches in every layout."""
    count = 0
    for name, values, alignment in _inputs():
        x = values.to(torch.bfloat16)
        if x.stride() != values.stride() or values.storage_offset():
            base = torch.as_strided(values, (values.untyped_storage().nbytes() // 4,), (1,), 0)
            whole = base.to(torch.bfloat16)
            x = whole.as_strided(values.shape, values.stride(), values.storage_offset())
        for layout in LAYOUTS:
            options = {"scale_layout": layout, "alignment": alignment}
            actual = launch["quantize"](x, **options)
            count += same(actual, reference.quantize(x, **options), (name, options))
    return count


def columns() -> int:
    """Columnwise and both, over types, modes, layouts, strides and padding."""
    count = 0
    for input_dtype in INPUTS:
        x = testing.adversarial_blocks(input_dtype, random=64)[:320].reshape(-1, 64)
        for element in ELEMENTS:
            for mode in MODES:
                options = {"dtype": element, "scaling_mode": mode}
                expected = reference.quantize_both(x, **options)
                actual = launch["quantize_both"](x, **options)
                count += same(actual, expected, (x.dtype, options))
                actual = launch["quantize_columnwise"](x, **options)
                count += same(actual, expected[2:], (x.dtype, options))
    for name, values, alignment in _inputs():
        if values.dim() < 2:
            continue
        for layout, layout_t in zip(LAYOUTS, (*LAYOUTS[1:], None), strict=True):
            options = {"scale_layout": layout, "alignment": alignment or 32}
            actual = launch["quantize_both"](values, scale_layout_t=layout_t, **options)
            expected = reference.quantize_both(values, scale_layout_t=layout_t, **options)
            count += same(actual, expected, (name, layout, layout_t))
            actual = launch["quantize_columnwise"](values, **options)
            expected = reference.quantize_columnwise(values, **options)
            count += same(actual, expected, (name, options))
    return count


def modes() -> int:
    """Every type, mode and element in the tile kernel."""
    count = 0
    for input_dtype in INPUTS:
        x = testing.adversarial_blocks(input_dtype, random=64)[:264].reshape(66, 128)
        for element in ELEMENTS:
            for mode in MODES:
                options = {"dtype": element, "scaling_mode": mode, "scale_layout": LAYOUTS[1]}
                expected = reference.quantize(x, **options)
                count += same(launch["quantize"](x, **options), expected, (x.dtype, options))
    return count


def replays() -> int:
    """A call like an earlier one is not checked again, so only a valid one may be taken for one."""
    data, scale = reference.quantize(torch.randn(4, 64))
    launch["dequantize"](data, scale)
    count = 0
    for bad in (
        scale.view(torch.uint8),
        torch.empty(scale.shape, dtype=scale.dtype, device="meta"),
        scale.view(torch.uint8).to_sparse(),
        None,
    ):
        assert triton_launch.replay("dequantize", data, bad) is None
        count += 1
    return count + same(
        triton_launch.replay("dequantize", data, scale),
        reference.dequantize(data, scale),
        "replayed",
    )


SECTIONS = {f.__name__: f for f in (numerics, maxima, dequantize, shapes, columns, modes, replays)}

if __name__ == "__main__":
    triton_launch.allocate = _allocate_poisoned
    _large_programs()
    torch.set_num_threads(1)
    print(SECTIONS[sys.argv[1]]())
