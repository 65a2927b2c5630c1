"""Calls every native CUDA kernel on a few shapes, for compute-sanitizer; see sanitize_cuda.sh."""

from __future__ import annotations

import itertools

import torch

import mxfp8_ops
from mxfp8_ops import formats, reference, testing

SHAPES = ((1, 64), (3, 96), (130, 160), (2, 33, 100))


def main() -> None:
    layouts = tuple(formats.SCALE_LAYOUTS)
    cases = itertools.product(SHAPES, formats.INPUT_DTYPES, formats.ELEMENT_FORMATS, layouts)
    calls = 0
    for shape, dtype, element, layout in cases:
        dense = torch.randn(*shape, device="cuda").to(dtype)
        wider = torch.randn(*shape[:-1], shape[-1] + 3, device="cuda").to(dtype)[..., 1:-2]
        for x in (dense, wider, dense.mT.contiguous().mT):
            host = x.cpu()
            options = {"dtype": element, "scale_layout": layout, "alignment": 64, "backend": "cuda"}
            pair = mxfp8_ops.quantize(x, **options)
            back = mxfp8_ops.dequantize(*pair, scale_layout=layout, backend="cuda")
            columns = mxfp8_ops.quantize_columnwise(x, **options)
            both = mxfp8_ops.quantize_both(x, **options)
            del options["backend"]
            expected = reference.quantize(host, **options)
            testing.assert_same_bytes(pair, expected)
            testing.assert_same_bytes(both[:2], expected)
            testing.assert_same_bytes(both[2:], columns)
            testing.assert_same_bytes(back, reference.dequantize(*expected, scale_layout=layout))
            calls += 4
    torch.cuda.synchronize()
    print(f"{calls} calls, bytes equal to the reference")


if __name__ == "__main__":
    main()
