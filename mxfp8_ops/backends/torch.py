"""The reference as a backend: every device, every call, never refuses."""

from __future__ import annotations

import torch

from .. import reference
from . import Backend


def _unavailable_reason(device: torch.device) -> None:
    return None


BACKEND = Backend(
    name="torch",
    dispatch_keys=("CompositeExplicitAutograd",),
    launchers={
        "quantize": reference.quantize,
        "quantize_columnwise": reference.quantize_columnwise,
        "quantize_both": reference.quantize_both,
        "dequantize": reference.dequantize,
        "swizzle_scale": reference.swizzle_scale,
        "unswizzle_scale": reference.unswizzle_scale,
    },
    unavailable_reason=_unavailable_reason,
)
