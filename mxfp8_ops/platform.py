"""Cached questions about the machine. Nothing here runs on import."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Iterator

import torch


def is_rocm() -> bool:
    """Whether this torch drives AMD GPUs, whose tensors also have the device type ``cuda``."""
    return torch.version.hip is not None


@functools.cache
def compute_capability(index: int) -> tuple[int, int]:
    """Compute capability of an NVIDIA GPU, ``(9, 0)`` for an H200."""
    return torch.cuda.get_device_capability(index)


@functools.cache
def gcn_arch(index: int) -> str:
    """Architecture of an AMD GPU without its feature flags, ``"gfx942"`` for an MI300X."""
    return torch.cuda.get_device_properties(index).gcnArchName.split(":")[0]


def device_index(device: torch.device) -> int:
    """Index of ``device``; that of the current device where none is given."""
    if device.index is not None:
        return device.index
    return torch.accelerator.current_device_index() if device.type in ("cuda", "xpu") else 0


WARM_UP = "call mxfp8_ops.warmup(), or this operation once with the same arguments, before"


def is_capturing(device: torch.device) -> bool:
    """Whether the current stream of ``device`` is recorded into a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def package_version(distribution: str) -> str | None:
    """Version of an installed distribution, read from its metadata without importing it."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


TRITON_DISTRIBUTIONS = (
    "triton",
    "triton-xpu",
    "triton-rocm",
    "pytorch-triton-xpu",
    "pytorch-triton-rocm",
)


def triton_version() -> str | None:
    """Version of the package ``triton``, which each vendor distributes under a name of its own."""
    return next(filter(None, map(package_version, TRITON_DISTRIBUTIONS)), None)


def has_module(name: str) -> bool:
    """Whether a top-level module can be found, without importing it."""
    return importlib.util.find_spec(name) is not None


def devices() -> Iterator[torch.device]:
    """The CPU and every accelerator of this machine."""
    yield torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        for index in range(torch.accelerator.device_count()):
            yield torch.device(accelerator.type, index)
