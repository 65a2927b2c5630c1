"""Native CUDA kernels, from ``csrc/cuda``: the library registers them on the CUDA dispatch key."""

from __future__ import annotations

import ctypes
import functools

import torch

from .. import native, platform
from ..ops import OPERATIONS
from . import Backend

_OPERATIONS = ("quantize", "quantize_columnwise", "quantize_both", "dequantize")
_OLDEST = (8, 0)


def _load_error() -> str | None:
    if platform.is_rocm():
        return "it runs on NVIDIA GPUs and this torch drives AMD GPUs"
    return native.load_error("cuda")


@functools.cache
def compiled_archs() -> tuple[tuple[int, int], ...]:
    """Compute capabilities that the library was compiled for; it has PTX for the last of them."""
    function = native.library("cuda").mxfp8_cuda_archs
    function.restype = ctypes.c_char_p
    archs = [arch.rstrip("af") for arch in function().decode().split("_")]
    return tuple((int(arch[:-1]), int(arch[-1])) for arch in archs)


def arch_reason(capability: tuple[int, int], archs: tuple[tuple[int, int], ...]) -> str | None:
    """Why kernels compiled for ``archs`` do not run on ``capability``, or None.

    Machine code runs on its own major version from its minor version up; PTX, which is there for the
    last of ``archs``, on everything from its version up.
    """
    major, minor = capability
    if capability < _OLDEST:
        return f"it needs compute capability 8.0 or newer, found {major}.{minor}"
    compiled = any(m == major and n <= minor for m, n in archs)
    if compiled or capability >= archs[-1]:
        return None
    listed = ", ".join(f"{m}.{n}" for m, n in archs)
    return (
        f"the native cuda library was compiled for compute capability {listed} and the device has "
        f"{major}.{minor}; MXFP8_OPS_CUDA_ARCHS chooses the architectures when it is built"
    )


def _unavailable_reason(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"it runs on cuda tensors, got a tensor on {device}"
    error = _load_error()
    if error is not None:
        return error
    capability = platform.compute_capability(platform.device_index(device))
    return arch_reason(capability, compiled_archs())


BACKEND = Backend(
    name="cuda",
    dispatch_keys=("CUDA",),
    launchers={name: OPERATIONS[name].op("cuda") for name in _OPERATIONS},
    unavailable_reason=_unavailable_reason,
    registers_kernels=_load_error() is None,
)
