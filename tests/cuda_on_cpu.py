"""The CUDA kernels on the CPU between guard pages; a process of its own, as a fault ends it.

python tests/cuda_on_cpu.py LIBRARY
"""

from __future__ import annotations

import ctypes
import itertools
import sys

import torch
from cpu_raw import ELEMENTS, LAYOUTS, call_between_guards, integers

from mxfp8_ops import formats, reference
from mxfp8_ops.formats import round_up
from mxfp8_ops.testing import adversarial_blocks

# Around blocks, warps of 8 blocks, tiles of 8, 128 and 128 x 128.
SHAPES = [(1, 32), (3, 96), (8, 256), (130, 288), (257, 160), (2, 5, 64), (3, 129, 32)]
RAGGED = [(1, 1), (33, 33), (129, 95), (5, 1000), (2, 31, 65)]
UNROLLS = (1, 2, 4)


class Kernels:
    """The entries of ``native/cuda_on_cpu/c_api.cpp``."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self.calls = 0

    def __call__(self, name, inputs, arguments, expected, context) -> None:
        entry = getattr(self._library, f"mxfp8_cuda_{name}_raw")
        self.calls += call_between_guards(entry, inputs, arguments, expected, f"{name} {context}")


def sizes_of(x: torch.Tensor) -> ctypes.Array[ctypes.c_int64]:
    """Batch, rows, columns and the strides of the first two."""
    x = x if x.dim() == 3 else x.unsqueeze(0)
    assert x.stride(2) == 1 or x.shape[2] == 1
    return (ctypes.c_int64 * 5)(*x.shape, *x.stride()[:2])


def format_codes(x: torch.Tensor, element: torch.dtype, mode: str) -> list[int]:
    return [
        formats.INPUT_DTYPES.index(x.dtype),
        ELEMENTS.index(element),
        formats.SCALING_MODES.index(mode),
    ]


def quantizers(kernels: Kernels, x, alignment: int, options: dict, unroll: int) -> None:
    """All three operations on one tensor."""
    context = f"{tuple(x.shape)} {x.stride()} {x.dtype} {alignment} {options} {unroll}"
    layout = LAYOUTS.index(options["scale_layout"])
    layout_t = (layout + 1) % len(LAYOUTS)
    both = reference.quantize_both(
        x.clone(), alignment=alignment, scale_layout_t=LAYOUTS[layout_t], **options
    )
    first = [sizes_of(x), *format_codes(x, options["dtype"], options["scaling_mode"])]
    rows, columns = integers(*(round_up(n, alignment) for n in x.shape[-2:]))
    kernels("quantize", [x], [*first, layout, columns, unroll], both[:2], context)
    kernels("quantize_both", [x], [*first, layout, layout_t, columns, rows], both, context)
    kernels("quantize_columnwise", [x], [*first, layout_t, rows], both[2:], context)


def dequantizers(kernels: Kernels, data, scale, layout: str, unroll: int) -> None:
    """All output types; ``data`` with rows that may lie apart."""
    stored = reference.swizzle_scale(scale, layout)
    arguments = [sizes_of(data), ELEMENTS.index(data.dtype), LAYOUTS.index(layout)]
    for index, output in enumerate(formats.OUTPUT_DTYPES):
        expected = reference.dequantize(data.clone(), stored, dtype=output, scale_layout=layout)
        inputs = [data.view(torch.uint8), stored.view(torch.uint8)]
        kernels("dequantize", inputs, [*arguments, index, unroll], [expected], f"{layout}")


def layouts_of(x: torch.Tensor) -> list[torch.Tensor]:
    """One tensor in several memory layouts, and beginning where vectors cannot be loaded."""
    wide = x.new_zeros(*x.shape[:-1], x.shape[-1] + 3)
    wide[..., : x.shape[-1]] = x
    spaced = x.new_zeros(*x.shape[:-1], x.shape[-1] + 32)
    spaced[..., : x.shape[-1]] = x
    return [x, wide[..., : x.shape[-1]], spaced[..., : x.shape[-1]]]


def main() -> None:
    torch.set_num_threads(1)
    kernels = Kernels(sys.argv[1])
    unrolls = itertools.cycle(UNROLLS)
    for dtype in formats.INPUT_DTYPES:
        blocks = adversarial_blocks(dtype, random=300)
        x = blocks[: blocks.shape[0] // 160 * 160].reshape(-1, 160)
        for element, mode in itertools.product(ELEMENTS, formats.SCALING_MODES):
            options = {"dtype": element, "scaling_mode": mode, "scale_layout": "linear"}
            quantizers(kernels, x, 32, options, next(unrolls))
    # Each combination meets some shapes, and each shape some of them.
    options = itertools.cycle(
        {"dtype": dtype, "scaling_mode": mode, "scale_layout": layout}
        for mode, dtype, layout in itertools.product(formats.SCALING_MODES, ELEMENTS, LAYOUTS)
    )
    alignments = itertools.cycle((32, 128, 32, 64))
    generator = torch.Generator().manual_seed(0)
    for shape in SHAPES + RAGGED:
        values = torch.randn(shape, generator=generator)
        for dtype, unroll in itertools.product(formats.INPUT_DTYPES, UNROLLS):
            for x in layouts_of(values.to(dtype)):
                quantizers(kernels, x, next(alignments), next(options), unroll)
    codes = torch.arange(256, dtype=torch.uint8)
    scale = codes.unsqueeze(1).repeat(1, 8).view(formats.SCALE_DTYPE)
    for element, layout in itertools.product(ELEMENTS, LAYOUTS):
        for data in layouts_of(codes.repeat(256, 1)):
            dequantizers(kernels, data.view(element), scale, layout, next(unrolls))
    for shape, layout, unroll in itertools.product(SHAPES, LAYOUTS, UNROLLS):
        values = torch.randn(shape, generator=generator)
        data, scale = reference.quantize(values)
        for codes in layouts_of(data.view(torch.uint8)):
            dequantizers(kernels, codes.view(data.dtype), scale, layout, unroll)
    print(f"{kernels.calls} calls")


if __name__ == "__main__":
    main()
