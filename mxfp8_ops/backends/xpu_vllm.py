"""The group quantization of vllm-xpu-kernels on Intel GPUs: chosen by name only, its bytes deviate."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from .. import formats, platform
from ..formats import BLOCK_SIZE
from ..ops import allocate_quantized
from . import Backend

_DISTRIBUTION = "vllm-xpu-kernels"
_OP = "_C::per_token_group_fp8_quant"
# Every build of vLLM owns the namespace _C. A kernel on the XPU key and these arguments tell the op of
# vllm-xpu-kernels from its namesakes for other devices.
_ARGUMENTS = (
    ("input", "Tensor"),
    ("output_q", "Tensor"),
    ("output_s", "Tensor"),
    ("group_size", "int"),
    ("eps", "float"),
    ("fp8_min", "float"),
    ("fp8_max", "float"),
    ("scale_ue8m0", "bool"),
    ("dummy_is_scale_transposed", "bool"),
    ("dummy_is_tma_aligned", "bool"),
)


def _is_registered() -> bool:
    known = torch._C._dispatch_has_kernel(_OP)
    return known and torch._C._dispatch_has_kernel_for_dispatch_key(_OP, "XPU")


def _unavailable_reason(device: torch.device) -> str | None:
    if device.type != "xpu":
        return f"it runs on xpu tensors, got a tensor on {device}"
    if not torch.xpu.is_available():
        return "torch finds no Intel GPU; the driver and the user's access to /dev/dri decide that"
    if not _is_registered():
        version = platform.package_version(_DISTRIBUTION)
        if version is None:
            return f"the package {_DISTRIBUTION} is not installed"
        try:
            importlib.import_module("vllm_xpu_kernels._C")
        except (ImportError, OSError) as error:
            return f"{_DISTRIBUTION} {version} cannot be imported with this torch: {error}"
        if not _is_registered():
            return f"{_DISTRIBUTION} {version} registers no kernel for {_OP} on the XPU key"
    schema = torch.ops._C.per_token_group_fp8_quant.default._schema
    if tuple((a.name, str(a.type)) for a in schema.arguments) != _ARGUMENTS:
        return f"its op has other arguments than the known ones: {schema}"
    return None


def _unsupported_reason(operation: str, input: torch.Tensor, **options: Any) -> str | None:
    scaling_mode = options.get("scaling_mode", "rceil")
    scale_layout = options.get("scale_layout", "linear")
    alignment = options.get("alignment")
    if scaling_mode != "rceil":
        return f"its scaling_mode is 'rceil', got {scaling_mode!r}"
    if scale_layout != "linear":
        return f"its scale_layout is 'linear', got {scale_layout!r}"
    if input.dim() != 2 or not input.is_contiguous():
        return (
            "it takes contiguous two-dimensional input, got shape "
            f"{tuple(input.shape)} with strides {input.stride()}"
        )
    if alignment is not None and input.shape[-1] % alignment != 0:
        return f"it does not pad, got K = {input.shape[-1]} and alignment = {alignment}"
    return None


def _launch_quantize(
    input: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    alignment: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    data, scale = allocate_quantized(input, input.shape, dtype, scale_layout, alignment)
    limit = formats.element_format(dtype).max
    powers = torch.empty(scale.shape, dtype=torch.float32, device=input.device)
    # The op ignores eps and the limits in this mode; they are what its own callers pass.
    torch.ops._C.per_token_group_fp8_quant(
        input, data, powers, BLOCK_SIZE, 1e-10, -limit, limit, True, False, False
    )
    # Positive powers of two, or infinity: the exponent field is the E8M0 byte.
    scale.view(torch.uint8).copy_(powers.view(torch.int32) >> 23)
    return data, scale


BACKEND = Backend(
    name="xpu_vllm",
    dispatch_keys=("XPU",),
    launchers={"quantize": _launch_quantize},
    unavailable_reason=_unavailable_reason,
    unsupported_reason=_unsupported_reason,
    deviation=(
        "its scale byte is at least 110 (e4m3) or 103 (e5m2), so that blocks whose largest |x| is below "
        "0.0017 lose bits and blocks of zeros have that scale; a NaN is left out of the scale and comes "
        "out as the largest number; the data of a block with an infinity differ"
    ),
)
