"""Native CPU kernels, from ``csrc/cpu``: the library registers them, and serves every call."""

from __future__ import annotations

import torch

from .. import native
from ..ops import OPERATIONS
from . import Backend

_OPERATIONS = (
    "quantize",
    "quantize_columnwise",
    "quantize_both",
    "dequantize",
    "swizzle_scale",
    "unswizzle_scale",
)


def _unavailable_reason(device: torch.device) -> str | None:
    if device.type != "cpu":
        return f"it runs on cpu tensors, got a tensor on {device}"
    return native.load_error("cpu")


BACKEND = Backend(
    name="cpu",
    dispatch_keys=("CPU",),
    launchers={name: OPERATIONS[name].op("cpu") for name in _OPERATIONS},
    unavailable_reason=_unavailable_reason,
    registers_kernels=native.load_error("cpu") is None,
)
