"""FlashInfer's cute-dsl kernel, what serving engines run on Blackwell GPUs.

The package is looked for when a device of sufficient capability first asks, never on import: it takes
one to two seconds to import, and some versions (0.6.14 to 0.7.0) initialise CUDA while they do. The
kernel compiles on the first call with a new (dtype, K, layout), 0.2 to 0.6 s, and once more where
M * K / 32 first reaches 65536: call once with each shape before a graph capture.

``MXFP8_OPS_CUTE_DSL_MIN_CAPABILITY`` is a switch for tests: FlashInfer supports this kernel from compute
capability 10.0 on, but it also compiles for 9.0, and ``9.0`` lets a Hopper GPU check this adapter. It
opens the backend to calls by name; automatic choice does not consider it there.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .. import formats, platform
from ..errors import BackendUnavailableError, is_device_fault
from ..formats import BLOCK_SIZE, SCALE_DTYPE, SCALE_LAYOUTS
from . import Backend

MINIMUM_VERSION = "0.6.13"
"""The first with exact scale bytes: 0.6.7 approximates log2, 0.6.8 to 0.6.12 are one too high for
blocks with 0 < amax <= 448 * 2**-127."""

FLOAT32_VERSION = "0.7.1"
"""The first whose kernel reads fp32, with 256-bit loads that need compute capability 10.0."""

_NEEDED = f"flashinfer-python {MINIMUM_VERSION} or newer with nvidia-cutlass-dsl is needed"
_LAYOUT_NAMES = {
    "linear": "layout_linear",
    "swizzled_32_4_4": "layout_128x4",
    "swizzled_8x4": "layout_8x4",
}


@dataclass(frozen=True)
class _Quantizer:
    """A usable ``flashinfer.mxfp8_quantize`` and the arguments that choose each scale layout."""

    function: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    layouts: dict[str, dict[str, Any]]
    version: str
    takes_float32: bool


def _release(version: str) -> tuple[int, int, int, bool]:
    """Comparable form of a version; pre-releases sort before their release."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(.*)", version)
    if match is None:
        raise ValueError(f"version {version!r} of flashinfer is not a number")
    major, minor, patch, rest = match.groups()
    is_final = re.match(r"\.?(a|b|rc|dev)", rest) is None
    return int(major), int(minor), int(patch or 0), is_final


def _probe() -> _Quantizer | str:
    """The quantizer, or why there is none.

    Real installations fail with AssertionError (0.6.14 to 0.7.0 without a GPU), RuntimeError (cutlass-dsl
    without its CUDA libraries, cubin package of another version) and FileNotFoundError (home directory
    not writable), so every exception is a reason.
    """
    try:
        import flashinfer
    except ModuleNotFoundError as error:
        if error.name == "flashinfer":
            return f"flashinfer is not installed; {_NEEDED}"
        return f"import flashinfer failed with {_describe(error)}; {_NEEDED}"
    except Exception as error:
        return f"import flashinfer failed with {_describe(error)}; {_NEEDED}"
    try:
        version = getattr(flashinfer, "__version__", None)
        version = str(version or platform.package_version("flashinfer-python"))
        function = getattr(flashinfer, "mxfp8_quantize", None)
        if function is None:
            return f"flashinfer {version} has no mxfp8_quantize; {_NEEDED}"
        if getattr(function, "__module__", "").startswith("mxfp8_ops."):
            # Calling it would come back here, and so on.
            return "flashinfer.mxfp8_quantize has been replaced by that of mxfp8_ops.compat"
        signature = inspect.signature(function)
        if "backend" not in signature.parameters:
            return f"mxfp8_quantize of flashinfer {version} has no backend argument; {_NEEDED}"
        if _release(version) < _release(MINIMUM_VERSION):
            return f"flashinfer {version} computes some scales wrongly; {_NEEDED}"
        from flashinfer.cute_dsl import is_cute_dsl_available

        if not is_cute_dsl_available():
            return f"flashinfer {version} does not find nvidia-cutlass-dsl; {_NEEDED}"
        # Importing the kernels imports all of cutlass: a broken installation shows here.
        import flashinfer.quantization.kernels.mxfp8_quantize
        from flashinfer import SfLayout

        layouts = {
            name: {
                "is_sf_swizzled_layout": name != "linear",
                "sf_swizzle_layout": getattr(SfLayout, theirs),
            }
            for name, theirs in _LAYOUT_NAMES.items()
        }
        for choice in layouts.values():
            signature.bind(input=None, alignment=BLOCK_SIZE, backend="cute-dsl", **choice)
    except Exception as error:
        return f"flashinfer cannot run its cute-dsl kernel: {_describe(error)}; {_NEEDED}"
    takes_float32 = _release(version) >= _release(FLOAT32_VERSION)
    return _Quantizer(function, layouts, version, takes_float32)


def _describe(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


@functools.cache
def quantizer() -> _Quantizer | str:
    """The result of the one probe of this process."""
    return _probe()


def minimum_capability() -> tuple[int, int]:
    """``(10, 0)``, or what ``MXFP8_OPS_CUTE_DSL_MIN_CAPABILITY`` says."""
    text = os.environ.get("MXFP8_OPS_CUTE_DSL_MIN_CAPABILITY", "").strip() or "10.0"
    if re.fullmatch(r"\d+\.\d", text) is None:
        raise ValueError(
            "MXFP8_OPS_CUTE_DSL_MIN_CAPABILITY must be a compute capability like '9.0', "
            f"got {text!r}"
        )
    major, minor = text.split(".")
    return int(major), int(minor)


def device_reason(device: torch.device) -> str | None:
    """Why FlashInfer's kernel does not run on ``device``, or None. FlashInfer does not check it."""
    if device.type != "cuda" or platform.is_rocm():
        kind = "an AMD GPU" if device.type == "cuda" else str(device)
        return f"it runs on NVIDIA GPUs, got a tensor on {kind}"
    found, needed = capability(device), minimum_capability()
    if found < needed:
        return (
            f"it runs on compute capability {needed[0]}.{needed[1]} and newer, "
            f"{device} has {found[0]}.{found[1]}"
        )
    return None


def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of ``device``; cached."""
    return platform.compute_capability(platform.device_index(device))


def _unavailable_reason(device: torch.device) -> str | None:
    reason = device_reason(device)
    if reason is not None:
        return reason
    found = quantizer()
    return found if isinstance(found, str) else None


def _unsupported_reason(
    operation: str,
    input: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    alignment: int | None = None,
) -> str | None:
    if scaling_mode != "rceil":
        return f"it has scaling_mode 'rceil' only, got '{scaling_mode}'"
    if dtype is not None and dtype != torch.float8_e4m3fn:
        return f"it writes torch.float8_e4m3fn only, got dtype {dtype}"
    shape = input.shape
    columns = shape[-1]
    if columns % BLOCK_SIZE != 0:
        return f"it needs K to be a multiple of {BLOCK_SIZE} even with alignment, got K = {columns}"
    padded = columns if alignment is None else formats.round_up(columns, alignment)
    elements = input.numel() // columns * padded
    if elements >= 1 << 31:
        return f"its row offsets have 32 bits: M * K must be below 2**31, got {elements}"
    if len(shape) > 2 and scale_layout != "linear":
        # Matrices of whole tiles, swizzled one after the other, are one tall matrix swizzled.
        tile_rows = SCALE_LAYOUTS[scale_layout].tile_rows
        if shape[-2] % tile_rows != 0 and shape[:-2].numel() != 1:
            return (
                f"it swizzles one matrix: with {shape[:-2].numel()} matrices and scale_layout "
                f"'{scale_layout}' M must be a multiple of {tile_rows}, got M = {shape[-2]}"
            )
    if input.dtype == torch.float32:
        return _float32_reason(input.device)
    return None


def _float32_reason(device: torch.device) -> str | None:
    found = quantizer()
    if isinstance(found, str):
        return found
    if not found.takes_float32:
        return f"flashinfer {found.version} takes no float32, {FLOAT32_VERSION} or newer does"
    if capability(device) < (10, 0):
        return "it reads float32 on compute capability 10.0 and newer only"
    return None


@functools.lru_cache(maxsize=4096)
def _result_shapes(
    shape: torch.Size, scale_layout: str, alignment: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return formats.quantized_shapes(shape, scale_layout, alignment)


@functools.cache
def _has_several_devices() -> bool:
    """Asking for the current device costs 1 us of each call."""
    return torch.cuda.is_available() and torch.cuda.device_count() > 1


def launch_quantize(
    input: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    alignment: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run ``flashinfer.mxfp8_quantize(backend="cute-dsl")`` on ``input``'s device and current stream.

    Raises:
        BackendUnavailableError: FlashInfer failed, for example while compiling its kernel.
    """
    found = quantizer()
    if isinstance(found, str):
        raise BackendUnavailableError("cute_dsl", found)
    index = input.device.index
    if index is not None and _has_several_devices() and index != torch.cuda.current_device():
        with torch.cuda.device(index):
            return _call(found, input, scale_layout, alignment)
    return _call(found, input, scale_layout, alignment)


def _call(
    found: _Quantizer, input: torch.Tensor, scale_layout: str, alignment: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = input.shape
    x = input.detach() if input.requires_grad else input
    if len(shape) != 2:
        x = x.reshape(-1, shape[-1])
    if not x.is_contiguous() or x.data_ptr() % (8 * x.element_size()) != 0:
        # The kernel loads 8 elements at a time; before 0.7.1 FlashInfer does not check for that.
        x = x.clone(memory_format=torch.contiguous_format)
    try:
        data, scale = found.function(
            input=x,
            alignment=BLOCK_SIZE if alignment is None else alignment,
            backend="cute-dsl",
            **found.layouts[scale_layout],
        )
        # It returns [M, K] and a flat uint8 tensor, whatever the shape of the input.
        data_shape, scale_shape = _result_shapes(shape, scale_layout, alignment)
        # The change of dtype last: autograd tracks views, and does not take that one for one.
        if len(shape) != 2:
            data = data.view(torch.uint8).view(data_shape).view(torch.float8_e4m3fn)
        return data, scale.view(*scale_shape).view(SCALE_DTYPE)
    except Exception as error:
        if is_device_fault(error):
            raise
        reason = f"mxfp8_quantize of flashinfer {found.version} failed with {_describe(error)}"
        if platform.is_capturing(input.device):  # it may only have had to compile
            sentence = f"{reason}, while a CUDA graph is being captured; {platform.WARM_UP}"
            raise RuntimeError(sentence) from error
        raise BackendUnavailableError("cute_dsl", reason) from error


BACKEND = Backend(
    name="cute_dsl",
    dispatch_keys=("CUDA",),
    launchers={"quantize": launch_quantize},
    unavailable_reason=_unavailable_reason,
    unsupported_reason=_unsupported_reason,
    deviation=(
        "blocks with 0 < amax <= 448 * 2**-127 (2.6e-36) come back as zeros, and blocks with a NaN or "
        "an infinity come back finite, with +448 in place of NaN and of both infinities"
    ),
)
