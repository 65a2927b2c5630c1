"""Runs the native CPU kernels between guard pages; a process of its own, as a fault ends it.

python tests/cpu_guard_pages.py ISA [LIBRARY]

LIBRARY is another build of csrc/cpu; its kernels also get the adversarial blocks and every code here.
"""

from __future__ import annotations

import itertools
import sys

import torch
from cpu_raw import (
    ELEMENTS,
    LAYOUTS,
    call_between_guards,
    input_arguments,
    integers,
    library,
    set_isa,
    use_library,
)

from mxfp8_ops import formats, reference
from mxfp8_ops.formats import round_up
from mxfp8_ops.testing import adversarial_blocks

# Rows and columns around the sizes of blocks, groups of 16 blocks, tiles and strips.
SIZES = [
    (1, 32),
    (1, 544),
    (3, 96),
    (7, 32),
    (8, 512),
    (33, 160),
    (128, 128),
    (130, 288),
    (257, 1056),
]
RAGGED = [(1, 1), (1, 31), (33, 33), (31, 65), (127, 129), (129, 95), (130, 290), (5, 1000)]
calls = 0


def layouts_of(rows: int, columns: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """One matrix in several memory layouts."""
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    x = torch.randn(rows, columns, generator=generator).to(dtype)
    wide = torch.zeros(rows, columns + 3, dtype=dtype)
    wide[:, :columns] = x
    steps = torch.zeros(rows, 2 * columns, dtype=dtype)
    steps[:, ::2] = x
    return {
        "contiguous": x,
        "transposed": x.t().contiguous().t(),
        "wide rows": wide[:, :columns],
        "steps": steps[:, ::2],
    }


def run(
    function: str,
    inputs: list[torch.Tensor],
    arguments: list[object],
    expected: tuple[torch.Tensor, ...],
    context: str,
) -> None:
    global calls
    entry = getattr(library(), function)
    calls += call_between_guards(entry, inputs, arguments, expected, f"{function} {context}")


def quantizers(x: torch.Tensor, alignment: int, options: dict, context: str) -> None:
    layout = LAYOUTS.index(options["scale_layout"])
    layout_t = len(LAYOUTS) - 1 - layout
    both = reference.quantize_both(
        x, alignment=alignment, scale_layout_t=LAYOUTS[layout_t], **options
    )
    first = input_arguments(x, options["dtype"], options["scaling_mode"])
    rows, columns = (round_up(size, alignment) for size in x.shape)
    run("mxfp8_cpu_quantize_raw", [x], [*first, layout, *integers(columns)], both[:2], context)
    last = [layout, layout_t, *integers(rows, columns)]
    run("mxfp8_cpu_quantize_both_raw", [x], [*first, *last], both, context)


def scales_and_back(rows: int, columns: int, layout: str, dtype: torch.dtype) -> None:
    x = layouts_of(rows, columns, torch.float32)["contiguous"]
    data, linear = reference.quantize(x, dtype=dtype)
    stored = reference.swizzle_scale(linear, layout)
    number = LAYOUTS.index(layout)
    codes, flat, tiles = (t.view(torch.uint8) for t in (data, linear, stored))
    context = f"{rows} x {columns} {layout}"
    for index, output in enumerate(formats.OUTPUT_DTYPES):
        expected = reference.dequantize(data, stored, dtype=output, scale_layout=layout)
        arguments = [*integers(rows, columns), ELEMENTS.index(dtype), number, index]
        run("mxfp8_cpu_dequantize_raw", [codes, tiles], arguments, (expected,), context)
    sizes = integers(*linear.shape)
    strides = integers(*linear.stride())
    run("mxfp8_cpu_swizzle_raw", [flat], [*sizes, *strides, number], (stored,), context)
    run("mxfp8_cpu_unswizzle_raw", [tiles], [*sizes, number], (linear,), context)


def every_value() -> None:
    for dtype in formats.INPUT_DTYPES:
        blocks = adversarial_blocks(dtype, random=300)
        x = blocks[: blocks.shape[0] // 160 * 160].reshape(-1, 160)
        for element, mode in itertools.product(ELEMENTS, formats.SCALING_MODES):
            options = {"dtype": element, "scaling_mode": mode, "scale_layout": "linear"}
            quantizers(x, 32, options, f"{dtype} {options}")
    codes = torch.arange(256, dtype=torch.uint8)
    scale = codes.unsqueeze(1).repeat(1, 8)
    for number, element in enumerate(ELEMENTS):
        data = codes.repeat(256, 1)
        for index, output in enumerate(formats.OUTPUT_DTYPES):
            expected = reference.dequantize(
                data.view(element), scale.view(formats.SCALE_DTYPE), dtype=output
            )
            arguments = [*integers(256, 256), number, 0, index]
            run("mxfp8_cpu_dequantize_raw", [data, scale], arguments, (expected,), str(output))


def main() -> None:
    if len(sys.argv) > 2:
        use_library(sys.argv[2])
        every_value()
    assert set_isa(sys.argv[1])
    torch.set_num_threads(1)
    # Each combination of the enums meets some size, and each size some of them.
    options = itertools.cycle(
        {"dtype": dtype, "scaling_mode": mode, "scale_layout": layout}
        for mode, layout, dtype in itertools.product(formats.SCALING_MODES, LAYOUTS, ELEMENTS)
    )
    alignments = itertools.cycle((32, 96, 32, 32, 64))
    for rows, columns in SIZES + RAGGED:
        for dtype in formats.INPUT_DTYPES:
            for name, x in layouts_of(rows, columns, dtype).items():
                chosen, alignment = next(options), next(alignments)
                context = f"{rows} x {columns} {name} {dtype} {chosen}"
                quantizers(x, alignment, chosen, context)
    for rows, columns in SIZES:
        for layout, dtype in itertools.product(LAYOUTS, ELEMENTS):
            scales_and_back(rows, columns, layout, dtype)
    # Large enough for stores past the cache, once aligned for them and once not.
    x = torch.randn(1031, 4096).to(torch.bfloat16)
    for layout in LAYOUTS[:2]:
        quantizers(
            x, 32, {"dtype": ELEMENTS[0], "scaling_mode": "rceil", "scale_layout": layout}, layout
        )
    print(f"{calls} calls")


if __name__ == "__main__":
    main()
