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
# Orin, and Thor under its first number.
_ON_CHIP = ((8, 7), (10, 1))


def _load_error() -> str | None:
    if platform.is_rocm():
        return "it runs on NVIDIA GPUs and this torch drives AMD GPUs"
    return native.load_error("cuda")


@functools.cache
def compiled_archs() -> tuple[str, ...]:
    """Architectures that the library was compiled for, like ``"90"``; it has PTX for the last of them."""
    function = native.library("cuda").mxfp8_cuda_archs
    function.restype = ctypes.c_char_p
    return tuple(function().decode().split("_"))


def _capability_of(arch: str) -> tuple[int, int]:
    number = arch.rstrip("af")
    return int(number[:-1]), int(number[-1])


def _runs_machine_code(arch: str, capability: tuple[int, int]) -> bool:
    """Machine code runs on its own major version from its minor version up.

    Architecture-specific code ("90a") runs on that capability alone, and systems on a chip run no code
    of discrete GPUs, nor these theirs.
    """
    own = _capability_of(arch)
    if own == capability:
        return True
    if arch.endswith("a") or own in _ON_CHIP or capability in _ON_CHIP:
        return False
    return own[0] == capability[0] and own[1] <= capability[1]


def _runs_ptx(arch: str, capability: tuple[int, int]) -> bool:
    """PTX runs on everything from its version up; family-specific one ("100f") within its major version."""
    own = _capability_of(arch)
    if arch.endswith("a"):
        return own == capability
    return capability >= own and (not arch.endswith("f") or own[0] == capability[0])


def arch_reason(capability: tuple[int, int], archs: tuple[str, ...]) -> str | None:
    """Why kernels compiled for ``archs``, with PTX for the last, do not run on ``capability``, or None."""
    major, minor = capability
    if capability < _OLDEST:
        return f"it needs compute capability 8.0 or newer, found {major}.{minor}"
    if any(_runs_machine_code(a, capability) for a in archs) or _runs_ptx(archs[-1], capability):
        return None
    listed = ", ".join(f"{a.rstrip('af')[:-1]}.{a[len(a.rstrip('af')) - 1 :]}" for a in archs)
    return (
        f"the native cuda library was compiled for compute capability {listed} and the device has "
        f"{major}.{minor}; MXFP8_OPS_CUDA_ARCHS chooses the architectures when it is built"
    )


def driver_reason(driver: int, runtime: int) -> str | None:
    """Why a driver that knows CUDA ``driver`` cannot serve a library built with CUDA ``runtime``, or None.

    Versions are 1000 * major + 10 * minor; within a major version older drivers serve newer libraries.
    """
    if driver // 1000 >= runtime // 1000:
        return None
    known, built = (f"{v // 1000}.{v % 1000 // 10}" for v in (driver, runtime))
    return (
        f"the native cuda library was built with CUDA {built} and the driver knows {known}; build it "
        "with the nvcc of an older CUDA, or install a newer driver"
    )


def _driver_reason() -> str | None:
    library = native.library("cuda")
    return driver_reason(library.mxfp8_cuda_driver_version(), library.mxfp8_cuda_runtime_version())


def _unavailable_reason(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"it runs on cuda tensors, got a tensor on {device}"
    error = _load_error()
    if error is not None:
        return error
    capability = platform.compute_capability(platform.device_index(device))
    return arch_reason(capability, compiled_archs()) or _driver_reason()


BACKEND = Backend(
    name="cuda",
    dispatch_keys=("CUDA",),
    launchers={name: OPERATIONS[name].op("cuda") for name in _OPERATIONS},
    unavailable_reason=_unavailable_reason,
    registers_kernels=_load_error() is None,
)
