"""The blocks in which a backend may differ, as docs/numerics.md describes them."""

from __future__ import annotations

from collections.abc import Callable

import torch

# amax with these fp32 bits is 448 * 2**-127, the largest that FlashInfer's kernel flushes to zero; in
# float32 also the number above it, whose product with fp32(1 / 448) rounds down to 2**-127.
_FLUSHED_BITS = 0x04600001

# The scale of vllm-xpu-kernels is max(amax, 1e-10) / max or more, as bytes in the reference's terms.
_XPU_VLLM_LOWEST = {torch.float8_e4m3fn: 110, torch.float8_e5m2: 103}


def _cute_dsl(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    amax_bits = (values.view(torch.int32) & 0x7FFFFFFF).amax(-1)
    flushed = (amax_bits > 0) & (amax_bits <= _FLUSHED_BITS)
    return flushed | ~values.isfinite().all(-1)


def _xpu_vllm(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (scale < _XPU_VLLM_LOWEST[dtype]) | ~values.isfinite().all(-1)


_BLOCKS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor]] = {
    "cute_dsl": _cute_dsl,
    "xpu_vllm": _xpu_vllm,
}


def may_differ(
    backend: str, values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor | None:
    """Which blocks ``backend`` may quantize to other bytes.

    Args:
        backend: name of the backend that serves the call.
        values: ``[n, 32]`` float32, the input's blocks.
        scale: ``[n]`` uint8, the reference's scale bytes.
        dtype: element type of the result.

    Returns:
        ``[n]`` bool, or None for a backend that meets docs/numerics.md everywhere.
    """
    function = _BLOCKS.get(backend)
    return None if function is None else function(values, scale, dtype)


def documented() -> tuple[str, ...]:
    """Names of the backends with documented deviations."""
    return tuple(_BLOCKS)
