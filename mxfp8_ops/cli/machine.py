"""What a bug report needs to know of a machine. Every question is asked on its own and may fail."""

from __future__ import annotations

import ctypes
import os
import platform as host
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import __version__, dispatch, native, platform
from ..backends import xpu
from ..ops import OPERATIONS

PACKAGES = (
    "torch",
    *platform.TRITON_DISTRIBUTIONS,
    "flashinfer-python",
    "nvidia-cutlass-dsl",
    "vllm-xpu-kernels",
    "intel-extension-for-pytorch",
    "torchao",
    "vllm",
    "sglang",
    "compressed-tensors",
    "rich",
    "safetensors",
    "matplotlib",
)
"""Distributions whose version is shown; read from metadata, nothing is imported."""

_VARIABLES = (
    "MXFP8_OPS_",
    "TRITON_",
    "FLASHINFER_",
    "CUDA_VISIBLE",
    "HIP_VISIBLE",
    "ONEAPI_",
    "ZE_",
)


def describe() -> dict[str, Any]:
    """Everything that ``info`` prints, in values that JSON knows."""
    return {
        "mxfp8_ops": __version__,
        "platform": {
            "mxfp8_ops": f"{__version__} in {Path(__file__).parents[1]}",
            "system": _answer(host.platform),
            "python": f"{host.python_version()} ({sys.executable})",
            "libc": _answer(lambda: " ".join(host.libc_ver()).strip() or "unknown"),
            "cpu": _answer(cpu_name),
            "cpu instructions": _answer(_cpu_instructions),
        },
        "torch": _answers(
            version=lambda: torch.__version__,
            cuda=lambda: torch.version.cuda,
            hip=lambda: torch.version.hip,
            xpu=lambda: getattr(torch.version, "xpu", None),
            threads=torch.get_num_threads,
            driver=_driver,
        ),
        "packages": {name: _answer(platform.package_version, name) for name in PACKAGES},
        "devices": [_device(device) for device in _devices()],
        "native_libraries": {
            name: _answer(native.load_error, name) for name in ("cpu", "cuda", "xpu")
        },
        "backends": _backends(),
        "routes": {
            str(device): {name: _answer(_route, name, device) for name in OPERATIONS}
            for device in _devices()
        },
        "deviations": {b.name: b.deviation for b in dispatch.BACKENDS.values() if b.deviation},
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(_VARIABLES)},
        "notes": [note for note in (_answer(xpu.ipex_note),) if note],
    }


def _answer(question: Callable[..., Any], *args: Any) -> Any:
    """The answer, or what went wrong as a sentence: broken packages and drivers raise anything."""
    try:
        return question(*args)
    except (Exception, SystemExit) as error:
        return f"unknown: {type(error).__name__}: {error}"


def _answers(**questions: Callable[[], Any]) -> dict[str, Any]:
    answers = {f"torch {name}": _answer(question) for name, question in questions.items()}
    return {name: value for name, value in answers.items() if value is not None}


def cpu_name() -> str:
    """Model and number of cores."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = models[0] if models else host.processor() or host.machine()
    return f"{name}, {os.cpu_count()} logical cores"


def _cpu_instructions() -> str:
    text = f"torch {torch.backends.cpu.get_cpu_capability()}"
    if native.load_error("cpu") is not None:
        return text
    function = native.library("cpu").mxfp8_cpu_isa
    function.restype = ctypes.c_char_p
    return f"{text}, native cpu library {function().decode()}"


def _driver() -> str | None:
    """Version of the kernel driver of the GPUs, where the system tells."""
    nvidia, amd = Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version")
    if nvidia.exists():
        return nvidia.read_text().splitlines()[0].partition(":")[2].strip()
    if amd.exists():
        return f"amdgpu {amd.read_text().strip()}"
    return None


def _devices() -> list[torch.device]:
    try:
        return list(platform.devices())
    except (Exception, SystemExit):
        return [torch.device("cpu")]


def _device(device: torch.device) -> dict[str, Any]:
    if device.type == "cpu":
        return {"device": "cpu", "name": _answer(cpu_name), "details": {}}
    module = getattr(torch, device.type)
    details: dict[str, Any] = {}
    if device.type == "cuda" and platform.is_rocm():
        details["arch"] = _answer(lambda: platform.gcn_arch(device.index))
    elif device.type == "cuda":
        details["compute capability"] = _answer(
            lambda: "{}.{}".format(*platform.compute_capability(device.index))
        )
    if hasattr(module, "get_device_properties"):
        properties = _answer(lambda: module.get_device_properties(device.index))
        for name in ("total_memory", "multi_processor_count", "L2_cache_size", "driver_version"):
            if hasattr(properties, name):
                details[name] = getattr(properties, name)
    name = device_name(device)
    return {"device": str(device), "name": name, "details": details}


def device_name(device: torch.device) -> str:
    """What the maker calls the device."""
    if device.type == "cpu":
        return _answer(cpu_name)
    return _answer(lambda: getattr(torch, device.type).get_device_name(device.index))


def _backends() -> list[dict[str, Any]]:
    rows = []
    for device in _devices():
        order = _answer(dispatch.preference, device)
        order = order if isinstance(order, tuple) else ()
        serving = _answer(_route, "quantize", device)
        for name in (*order, *(n for n in dispatch.BACKENDS if n not in order)):
            backend = dispatch.BACKENDS[name]
            reason = _answer(dispatch.unavailable_reason, backend, device)
            rows.append(
                {
                    "device": str(device),
                    "name": name,
                    "in_order": name in order,
                    "reason": reason,
                    "chosen": isinstance(serving, list) and name == serving[0],
                }
            )
    return rows


def _route(operation: str, device: torch.device) -> list[str] | str:
    backends, reason = dispatch.served_by(operation, device)
    return [backend.name for backend in backends] if reason is None else reason
