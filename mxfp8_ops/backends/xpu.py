"""Native kernels for Intel GPUs, from ``csrc/xpu``: SYCL, on the current stream of the tensor's device.

The library registers the kernels of ``mxfp8::quantize_xpu`` and ``mxfp8::dequantize_xpu`` on the XPU key.
It is loaded on the first question about an XPU device, never on import; the kernels' source is then
compiled for that device, which takes seconds, once per process.
"""

from __future__ import annotations

import ctypes

import torch

from .. import native, platform
from ..ops import NAMESPACE, OPERATIONS
from . import Backend

_OPERATIONS = ("quantize", "dequantize")
_IPEX = "intel-extension-for-pytorch"


def ipex_note() -> str | None:
    """What to say where intel-extension-for-pytorch is installed, else None. It is never imported."""
    version = platform.package_version(_IPEX)
    if version is None:
        return None
    return (
        f"{_IPEX} {version} is installed and not used: its development ended with 2.8, it has no MX "
        "operation, and torch drives Intel GPUs by itself"
    )


def _unavailable_reason(device: torch.device) -> str | None:
    reason = _reason(device)
    note = ipex_note()
    return reason if reason is None or note is None else f"{reason} ({note})"


def _reason(device: torch.device) -> str | None:
    if device.type != "xpu":
        return f"it runs on xpu tensors, got a tensor on {device}"
    if not torch._C._has_xpu:
        return f"this torch ({torch.__version__}) was not built for Intel GPUs"
    if not torch.xpu.is_available():
        return "torch finds no Intel GPU; the driver and the user's access to /dev/dri decide that"
    error = native.load_error("xpu")
    if error is not None:
        return error
    for operation in _OPERATIONS:
        name = f"{NAMESPACE}::{OPERATIONS[operation].op_name('xpu')}"
        if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "XPU"):
            return f"the native xpu library registered no kernel for {name} on the XPU key"
    return _compile_error(platform.device_index(device))


def _compile_error(index: int) -> str | None:
    prepare = native.library("xpu").mxfp8_xpu_prepare_device
    prepare.restype = ctypes.c_char_p
    error = prepare(index)
    if error is None:
        return None
    text = error.decode(errors="replace").strip()
    return f"SYCL's runtime could not compile the kernels for xpu:{index}: {text}"


BACKEND = Backend(
    name="xpu",
    dispatch_keys=("XPU",),
    launchers={name: OPERATIONS[name].op("xpu") for name in _OPERATIONS},
    unavailable_reason=_unavailable_reason,
    registers_kernels=False,
)
