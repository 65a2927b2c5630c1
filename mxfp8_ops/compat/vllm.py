"""``vllm.model_executor.layers.quantization.utils.mxfp8_utils``, and one function of vLLM's
``utils.flashinfer``, as of vLLM 0.33.
"""

from __future__ import annotations

import torch

from ..formats import BLOCK_SIZE
from ._bytes import as_scale, check_input, quantize_rows

MXFP8_VALUE_DTYPE = torch.float8_e4m3fn
MXFP8_SCALE_DTYPE = torch.uint8
MXFP8_BLOCK_SIZE = BLOCK_SIZE


def mxfp8_e4m3_quantize(
    x: torch.Tensor,
    is_sf_swizzled_layout: bool = False,
    alignment: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize to e4m3 with uint8 scales.

    A batch stays a batch: ``x`` of three dimensions gives data of three, and each matrix is swizzled by
    itself. That is what vLLM's torch path returns and what its fake promises to ``torch.compile`` on
    every device. (Through FlashInfer its op folds the batch into the rows instead and breaks that
    promise.) Inputs of one or more than three dimensions are swizzled too; vLLM ignores the flag there.

    Args:
        x: ``[*batch, M, K]`` or ``[K]``; bfloat16, float16 or float32; K a multiple of 32.
        is_sf_swizzled_layout: whether scales are swizzled (128x4) instead of linear.
        alignment: pads K with zeros to a multiple of this multiple of 32; 0 means 32.

    Returns:
        ``(data, scale)``, data ``float8_e4m3fn`` ``[*batch, M, Kp]``, scale uint8 ``[*batch, M, Kp / 32]``
        or, swizzled, ``[n]`` with the matrices one after the other.

    Raises:
        TypeError: x is not a tensor.
        ValueError: a bad argument.
    """
    check_input(x, "x")
    data, scale = torch.ops.mxfp8.quantize(
        x,
        scale_layout="swizzled_32_4_4" if is_sf_swizzled_layout else "linear",
        alignment=None if alignment == 0 else alignment,
    )
    if is_sf_swizzled_layout:
        scale = scale.flatten()
    return data, scale.view(MXFP8_SCALE_DTYPE)


def dequant_mxfp8_to_bf16(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Dequantize to bfloat16.

    vLLM takes the *values* of a ``float8_e8m0fnu`` tensor for exponents, which gives nonsense, and turns
    byte 255 into infinity. Here both dtypes mean bytes, and byte 255 gives NaN.

    Args:
        x: ``float8_e4m3fn`` (or ``float8_e5m2``), ``[..., K]``.
        scales: uint8 or ``float8_e8m0fnu``, ``[..., K / 32]``, linear.

    Returns:
        bfloat16 of x's shape.

    Raises:
        TypeError: x is not a tensor.
        ValueError: a dtype or a shape does not fit; swizzled scales are refused by their shape.
    """
    check_input(x, "x")
    return torch.ops.mxfp8.dequantize(x, as_scale(scales, "scales"))


def swizzle_mxfp8_scale(sf: torch.Tensor, M: int, K: int) -> torch.Tensor:
    """Linear scales of one matrix in the order of the 128x4 layout; padding bytes are 0.

    Args:
        sf: uint8 or ``float8_e8m0fnu``, ``[M, K / 32]``.
        M: rows of the quantized matrix.
        K: its columns.

    Returns:
        A new tensor of sf's dtype with ``ceil128(M) * ceil4(K / 32)`` elements.

    Raises:
        ValueError: sf is not scale bytes, or its shape does not belong to M and K.
    """
    scale = as_scale(sf, "sf")
    if scale.dim() != 2 or scale.shape[0] != M or scale.shape[1] * BLOCK_SIZE != K:
        raise ValueError(
            f"sf must have shape (M, K / {BLOCK_SIZE}), got shape {tuple(sf.shape)} with M = {M} "
            f"and K = {K}"
        )
    return torch.ops.mxfp8.swizzle_scale(scale, "swizzled_32_4_4").flatten().view(sf.dtype)


def xpu_mxfp8_quantize(
    x: torch.Tensor, dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize with linear ``float8_e8m0fnu`` scales, on any device.

    vLLM's kernel takes contiguous matrices only and never returns a scale byte below 110 (e4m3) or
    103 (e5m2), which costs blocks below 0.0017 their precision; here neither is so.

    Args:
        x: ``[*batch, M, K]`` or ``[K]``; bfloat16, float16 or float32; K a multiple of 32.
        dtype: ``torch.float8_e4m3fn`` (None) or ``torch.float8_e5m2``.

    Returns:
        ``(data, scale)``, data of x's shape, scale ``float8_e8m0fnu`` ``[*batch, M, K / 32]``.

    Raises:
        TypeError: x is not a tensor.
        ValueError: a bad argument.
    """
    check_input(x, "x")
    return torch.ops.mxfp8.quantize(x, dtype=dtype)


def flashinfer_mxfp8_quantize_8x4(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize a matrix for small-M TensorRT-LLM kernels: scales in the 8x4 layout.

    Args:
        a: ``[M, K]``; bfloat16, float16 or float32; K a multiple of 32.

    Returns:
        ``(data, scale)``, data ``float8_e4m3fn`` ``[M, K]``, scale uint8 ``[ceil8(M) * ceil4(K / 32)]``.

    Raises:
        TypeError: a is not a tensor.
        ValueError: a bad argument.
    """
    check_input(a, "a", 2, or_more=False)
    return quantize_rows(a, "swizzled_8x4", BLOCK_SIZE)
