"""Clocks: replays of CUDA graphs on GPUs, wall time elsewhere."""

from __future__ import annotations

import ctypes
import platform as host
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import platform

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_CPU_BUFFERS = 1 << 30
_GPU_BUFFERS = 4 << 30
_UNKNOWN_CACHE = 64 << 20
_CACHE_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size_of(shape: str) -> tuple[int, int]:
    """``(rows, columns)`` of a shape like ``"128x7168"``; ValueError if it is not one."""
    if re.fullmatch(r"\d+x\d+", shape) is None or 0 in map(int, shape.split("x")):
        raise ValueError(f"a shape must be like 128x7168, got {shape!r}")
    rows, columns = shape.split("x")
    return int(rows), int(columns)


def nbytes(tensors: Any) -> int:
    """Bytes of a tensor or of several."""
    if isinstance(tensors, torch.Tensor):
        tensors = (tensors,)
    return sum(t.numel() * t.element_size() for t in tensors)


def cache_bytes(device: torch.device) -> int:
    """Size of the last cache before memory; a guess where the system does not tell."""
    if device.type == "cuda":
        size = torch.cuda.get_device_properties(device).L2_cache_size
        # Of one of the L2 caches on AMD, before an Infinity Cache of 256 MiB on the largest GPUs.
        return max(size, 256 << 20) if platform.is_rocm() else size
    if device.type == "xpu":
        properties = torch.xpu.get_device_properties(device)
        return getattr(properties, "last_level_cache_size", 0) or _UNKNOWN_CACHE
    sizes = [_UNKNOWN_CACHE]
    if device.type == "cpu":
        for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
            match = re.fullmatch(r"(\d+)([KMG])", file.read_text().strip())
            if match:
                sizes.append(int(match[1]) * _CACHE_UNITS[match[2]])
        sizes = sizes[1:] or sizes
    return max(sizes)


def copies_for(total: int, cache: int, limit: int = _GPU_BUFFERS) -> int:
    """Rotating inputs: four times the cache, at most 128 tensors and ``limit`` bytes."""
    return max(1, min(128, -(-4 * cache // total), limit // total))


def rotating(total: int, device: torch.device) -> int:
    """``copies_for`` a call that moves ``total`` bytes on ``device``."""
    limit = _CPU_BUFFERS if device.type == "cpu" else _GPU_BUFFERS
    return copies_for(total, cache_bytes(device), limit)


def synchronize(device: torch.device) -> None:
    """Wait for the device; nothing to do on the CPU."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def kernel_time(
    call: Callable[[Any], Any], inputs: list[Any], budget: float, device: torch.device
) -> float:
    """Seconds of one call: graph replay on devices of type cuda, wall time elsewhere."""
    if device.type == "cuda":
        return graph_time(call, inputs, budget)
    return wall_time(call, inputs, budget, device)


def graph_time(call: Callable[[Any], Any], inputs: list[Any], budget: float) -> float:
    """Seconds of one call, by replaying a graph of at least 8 calls over ``inputs``."""
    calls = [inputs[i % len(inputs)] for i in range(max(8, len(inputs)))]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for x in calls[:2]:
            call(x)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # Kept, so that outputs are as many buffers as inputs and cannot stay in L2 either.
        kept = [call(x) for x in calls]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    times: list[float] = []
    for _ in range(3):
        graph.replay()
    deadline = time.perf_counter() + budget
    while len(times) < 5 or (time.perf_counter() < deadline and len(times) < 200):
        events[0].record()
        graph.replay()
        events[1].record()
        events[1].synchronize()
        times.append(events[0].elapsed_time(events[1]) * 1e-3 / len(calls))
    graph.reset()
    del kept
    return statistics.median(times)


def wall_time(
    call: Callable[[Any], Any], inputs: list[Any], budget: float, device: torch.device
) -> float:
    """Seconds of one call: median over rounds through ``inputs``, the device idle around each."""
    # Outputs are kept until the next round has made its own, so that they do not stay in the cache;
    # two rounds of new memory come first, whose page faults cost more than the work.
    times: list[float] = []
    started = time.perf_counter()
    for _ in range(2):
        kept = [call(x) for x in inputs]
    while len(times) < 5 or (time.perf_counter() < started + budget and len(times) < 200):
        synchronize(device)
        start = time.perf_counter()
        kept = [call(x) for x in inputs]
        synchronize(device)
        times.append((time.perf_counter() - start) / len(inputs))
        if time.perf_counter() > started + 2 + 10 * budget:
            break  # the slow ones: a reference takes seconds
    del kept
    return statistics.median(times)


def host_time(call: Callable[[Any], Any], x: Any, device: torch.device) -> float:
    """Seconds that an eager call keeps the host busy."""
    best = float("inf")
    for _ in range(5):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(200):
            call(x)
        best = min(best, (time.perf_counter() - start) / 200)
    synchronize(device)
    return best


def copy_kernel() -> Callable[[torch.Tensor, torch.Tensor], None] | None:
    """The Triton copy, or None where there is no Triton."""
    try:
        from .copy_kernels import launch_copy
    except Exception:
        return None
    return launch_copy


def copy_time(total: int, budget: float, device: torch.device) -> float:
    """Seconds of the best copy that reads total / 2 bytes and writes as many."""
    half = max(total // 2 // 16 * 16, 16)
    pairs = [
        tuple(torch.ones(half, dtype=torch.uint8, device=device) for _ in range(2))
        for _ in range(rotating(2 * half, device))
    ]
    times = [kernel_time(lambda p: p[1].copy_(p[0]), pairs, budget, device)]
    launch = copy_kernel() if device.type != "cpu" else None
    if launch is not None:
        times.append(kernel_time(lambda p: launch(p[0], p[1]), pairs, budget, device))
    return min(times)


def medians(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median wall time of each call on the CPU; the calls take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def keep_freed_memory() -> None:
    """Ask glibc not to return large freed blocks to the kernel; nothing elsewhere.

    A caching allocator does so too. New memory from the kernel costs more, in page faults, than the work.
    """
    if host.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
