"""Triton kernels for NVIDIA (SM80 and newer), AMD and Intel GPUs: what serves which device, launchers."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .. import formats, platform
from ..errors import BackendUnavailableError
from ..formats import BLOCK_SIZE
from . import Backend, triton_launch
from .triton_plans import plan_columns, plan_dequantize, plan_quantize


def is_interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _unavailable_reason(device: torch.device) -> str | None:
    if device.type == "cpu" and not is_interpreted():
        return (
            "it runs on CUDA, ROCm and XPU tensors, and on cpu ones only under TRITON_INTERPRET=1"
        )
    if device.type not in ("cuda", "xpu", "cpu"):
        return f"it runs on CUDA, ROCm and XPU tensors, got a tensor on {device}"
    try:
        import triton

        triton_launch.kernels()
    except Exception as error:  # a broken installation may raise anything
        return f"triton cannot be imported: {type(error).__name__}: {error}"
    if device.type == "cpu":
        return None
    if device.type == "cuda" and not platform.is_rocm():
        capability = platform.compute_capability(platform.device_index(device))
        if capability < (8, 0):
            return (
                f"Triton needs compute capability 8.0 or newer, "
                f"{device} has {capability[0]}.{capability[1]}"
            )
    try:
        triton.runtime.driver.active.get_current_target()
    except Exception as error:  # no compiled driver for this machine: Triton's own words say why
        return f"triton {triton.__version__} has no driver for {device}: {error}"
    return None


@functools.cache
def _cast(device_type: str, index: int) -> str:
    """Which conversion to FP8 is right and fast: a name of ``triton_kernels.CASTS``.

    Triton's own conversion rounds twice on sm_89 before Triton 3.9, does not exist (e4m3) or rounds
    halves up (e5m2) on sm_80 and sm_86, and saturates e4m3 at 256 in triton-xpu 3.3.
    """
    if device_type != "cuda":
        return "software"
    if platform.is_rocm():
        arch = platform.gcn_arch(index)
        if arch in ("gfx950", "gfx1250"):
            return "native"
        if arch.startswith("gfx94") and os.environ.get("MXFP8_OPS_TRITON_FNUZ", "1") != "0":
            return "fnuz" if _fnuz_is_exact(index) else "software"
        return "software"
    capability = platform.compute_capability(index)
    if capability >= (9, 0):
        return "satfinite"
    if capability == (8, 9):
        import triton

        release = tuple(int(part) for part in triton.__version__.split(".")[:2])
        return "satfinite" if release >= (3, 9) else "software"
    return "software"


def fnuz_blocks(element: torch.dtype, device: torch.device) -> torch.Tensor:
    """All of bfloat16, first in order, then behind an element that makes the scale 1: every code."""
    patterns = torch.arange(1 << 16, dtype=torch.int32, device=device).to(torch.int16)
    x = patterns.view(torch.bfloat16)
    largest = formats.ELEMENT_FORMATS[element].max
    small = torch.where(x.abs() <= largest, x, torch.zeros_like(x))
    small = torch.nn.functional.pad(small, (0, -small.numel() % (BLOCK_SIZE - 1)))
    small = small.reshape(-1, BLOCK_SIZE - 1)
    head = torch.full_like(small[:, :1], largest)
    return torch.cat([x.reshape(-1, BLOCK_SIZE), torch.cat([head, small], dim=1)])


def _fnuz_is_exact(index: int) -> bool:
    """Whether gfx942's FNUZ conversion of half the value gives the software codes."""
    device = torch.device("cuda", index)
    if platform.is_capturing(device):  # the comparison waits for the device
        raise RuntimeError(
            f"the FNUZ conversion cannot be checked while a CUDA graph is being captured; "
            f"{platform.WARM_UP}"
        )
    try:
        for element in formats.ELEMENT_FORMATS:
            x = fnuz_blocks(element, device)
            for mode in ("rceil", "floor"):
                plan = functools.partial(plan_quantize, x, dtype=element, scaling_mode=mode)
                exact, fnuz = plan(cast="software")(x), plan(cast="fnuz")(x)
                for a, b in zip(exact, fnuz, strict=True):
                    if not torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
                        return False
    except BackendUnavailableError:
        return False
    return True


def cast_of(device: torch.device) -> str:
    """The conversion to FP8 on ``device``."""
    return _cast(device.type, platform.device_index(device))


_PLANS: dict[str, Callable[..., triton_launch.Plan]] = {
    "quantize": plan_quantize,
    "quantize_columnwise": functools.partial(plan_columns, both=False),
    "quantize_both": functools.partial(plan_columns, both=True),
    "dequantize": plan_dequantize,
}


def _launch(operation: str, *args: torch.Tensor, **kwargs: Any) -> Any:
    """``mxfp8::<operation>_triton``; BackendUnavailableError where a kernel does not compile."""

    def make() -> triton_launch.Plan:
        return _PLANS[operation](*args, cast=cast_of(args[0].device), **kwargs)

    return triton_launch.serve(make, operation, *args, **kwargs)


def warmup(
    device: torch.device | str | None = None,
    *,
    input_dtypes: Iterable[torch.dtype] = (torch.bfloat16,),
    dtypes: Iterable[torch.dtype] = (torch.float8_e4m3fn,),
    scaling_modes: Iterable[str] = ("rceil",),
    scale_layouts: Iterable[str] = tuple(formats.SCALE_LAYOUTS),
) -> None:
    """Compile and load the usual variants of ``quantize`` and ``dequantize`` before they are needed.

    Compiles what whole matrices of every size class use, by running each once on zeros; about a
    second for each variant that Triton's cache on disk does not hold.

    Args:
        device: a CUDA, ROCm or XPU device; None means the current one.
        input_dtypes: types of x, and of the results of ``dequantize``.
        dtypes: FP8 types.
        scaling_modes: modes of ``quantize``.
        scale_layouts: layouts of the scales.

    Raises:
        BackendUnavailableError: the device has no Triton, or a kernel does not compile.
    """
    if device is None:
        device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    device = torch.device(device)
    if device.index is None and device.type != "cpu":
        device = torch.device(device.type, platform.device_index(device))
    reason = _unavailable_reason(device)
    if reason is not None:
        raise BackendUnavailableError("triton", reason)
    for input_dtype in input_dtypes:
        for elements in (1 << 12, 1 << 20, 1 << 24):
            x = torch.zeros(elements >> 12, 1 << 12, dtype=input_dtype, device=device)
            for dtype in dtypes:
                for layout in scale_layouts:
                    for mode in scaling_modes:
                        data, scale = BACKEND.launchers["quantize"](
                            x, dtype=dtype, scaling_mode=mode, scale_layout=layout
                        )
                    BACKEND.launchers["dequantize"](
                        data, scale, dtype=input_dtype, scale_layout=layout
                    )


BACKEND = Backend(
    name="triton",
    dispatch_keys=("CUDA", "XPU"),
    launchers={name: functools.partial(_launch, name) for name in _PLANS},
    replays={name: functools.partial(triton_launch.replay, name) for name in _PLANS},
    unavailable_reason=_unavailable_reason,
)
