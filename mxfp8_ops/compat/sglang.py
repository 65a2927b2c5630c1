"""``sglang.srt.layers.quantization.fp8_utils`` and the swizzling quantizer of SGLang's kernels, as of
SGLang 0.5.23.
"""

from __future__ import annotations

import torch

from ..formats import BLOCK_SIZE
from ._bytes import check_input, quantize_rows


def flashinfer_mxfp8_quantize(
    input: torch.Tensor,
    is_sf_swizzled_layout: bool = True,
    alignment: int = 32,
    backend: str = "cute-dsl",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize to e4m3 with flat uint8 scales; leading dimensions are folded into the rows.

    The batch is folded *before* scales are padded and swizzled, as in FlashInfer's kernel and in
    SGLang's fake.

    Args:
        input: ``[*batch, M, K]``, two dimensions or more; bfloat16, float16 or float32; K a multiple of 32.
        is_sf_swizzled_layout: whether scales are swizzled (128x4) instead of linear.
        alignment: pads K with zeros to a multiple of this multiple of 32.
        backend: a kernel of FlashInfer; chooses nothing here.

    Returns:
        ``(data, scale)``, data ``float8_e4m3fn`` ``[rows, Kp]`` with ``rows`` the product of all leading
        dimensions, scale uint8 ``[n]``.

    Raises:
        TypeError: input is not a tensor.
        ValueError: a bad argument.
    """
    check_input(input, "input", 2)
    layout = "swizzled_32_4_4" if is_sf_swizzled_layout else "linear"
    return quantize_rows(input, layout, alignment)


def mxfp8_group_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize a matrix to e4m3 with linear uint8 scales.

    Args:
        x: ``[M, K]``; bfloat16, float16 or float32, any strides; K a multiple of 32.

    Returns:
        ``(data, scale)``, data ``float8_e4m3fn`` ``[M, K]``, scale uint8 ``[M, K / 32]``.

    Raises:
        TypeError: x is not a tensor.
        ValueError: a bad argument.
    """
    check_input(x, "x", 2, or_more=False)
    data, scale = torch.ops.mxfp8.quantize(x)
    return data, scale.view(torch.uint8)


def mxfp8_quantize_swizzled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize a matrix to e4m3 with swizzled (128x4) uint8 scales, also under ``torch.compile``.

    Args:
        x: ``[M, K]``; bfloat16, float16 or float32, any strides; K a multiple of 32.

    Returns:
        ``(data, scale)``, data ``float8_e4m3fn`` ``[M, K]``, scale uint8
        ``[ceil128(M) * ceil4(K / 32)]``.

    Raises:
        TypeError: x is not a tensor.
        ValueError: a bad argument.
    """
    check_input(x, "x", 2, or_more=False)
    return quantize_rows(x, "swizzled_32_4_4", BLOCK_SIZE)
