"""What is measured: every operation of every backend, by shape."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import dispatch, formats, ops, reference
from ..errors import BackendUnavailableError
from . import timing
from .peers import Peer, find_peers

GPU_SHAPES = (
    *("1x4096", "128x7168", "512x7168", "8192x8192", "16384x16384", "4096x7168", "1024x8192"),
    *("1x7168", "3x4096", "130x2880", "16x4096", "4096x96", "4096x160", "130x7168"),
)
GPU_QUICK_SHAPES = ("1x4096", "128x7168", "512x7168", "8192x8192", "16384x16384")
CPU_SHAPES = ("1x4096", "16x4096", "128x7168", "512x7168", "4096x4096", "8192x8192")
CPU_QUICK_SHAPES = ("1x4096", "128x7168", "2048x4096")
DETAILED = {"8192x8192", "16384x16384"}
"""Shapes that are measured in all layouts, types and modes."""

LAYOUTS = tuple(formats.SCALE_LAYOUTS)


def shapes_for(device: torch.device, quick: bool) -> tuple[str, ...]:
    """The shapes that are measured if none are named."""
    if device.type == "cpu":
        return CPU_QUICK_SHAPES if quick else CPU_SHAPES
    return GPU_QUICK_SHAPES if quick else GPU_SHAPES


class Run:
    """Collects rows and reports each as it is measured.

    Attributes:
        rows: one dictionary per case: ``what``, ``shape``, ``bytes``, ``backend``, the options of the
            call, and either ``us``, ``tb_s`` and ``of_copy`` or ``error``.
    """

    def __init__(
        self, budget: float, device: torch.device, echo: Callable[[str], None] = print
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self.budget = budget
        self.device = device
        self.echo = echo
        self._copies: dict[int, float] = {}

    @functools.cached_property
    def peers(self) -> dict[str, Peer]:
        """Quantizers of other projects that can be imported."""
        return find_peers(self.device, self.echo)

    def copy(self, total: int) -> float:
        """Seconds of a copy that moves ``total`` bytes; measured once."""
        if total not in self._copies:
            self._copies[total] = timing.copy_time(total, self.budget, self.device)
        return self._copies[total]

    def measure(
        self,
        what: str,
        shape: str,
        call: Callable[[Any], Any],
        make: Callable[[int], Any],
        total: int,
        host: bool = False,
        **labels: Any,
    ) -> None:
        """Measure one case; what it raises becomes the row's ``error``."""
        row: dict[str, Any] = {"what": what, "shape": shape, "bytes": total, **labels}
        try:
            inputs = [make(i) for i in range(timing.rotating(total, self.device))]
            call(inputs[0])
            seconds = timing.kernel_time(call, inputs, self.budget, self.device)
            row["us"] = seconds * 1e6
            row["tb_s"] = total / seconds / 1e12
            row["of_copy"] = self.copy(total) / seconds
            if host:
                row["host_us"] = timing.host_time(call, inputs[0], self.device) * 1e6
            text = f"{row['us']:9.2f} us {row['tb_s']:6.3f} TB/s {row['of_copy']:5.3f} of copy"
            text += f" host {row['host_us']:.1f} us" if host else ""
        except BackendUnavailableError:
            return  # outside the backend's domain
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {str(error)[:200]}"
            text = row["error"][:90]
            timing.synchronize(self.device)
        self.rows.append(row)
        name = " ".join([what, *[str(v).removeprefix("torch.") for v in labels.values()]])
        self.echo(f"{shape:>12} {name:<62} {text}")


def random_input(
    shape: str, dtype: torch.dtype, device: torch.device | str = "cuda"
) -> Callable[[int], torch.Tensor]:
    """Maker of normal inputs; its argument is the number of the input."""

    def make(index: int) -> torch.Tensor:
        return torch.randn(timing.size_of(shape), dtype=dtype, device=device)

    return make


def total_bytes(shape: str, dtype: torch.dtype, operation: str, layout: str) -> int:
    """Bytes of the input and of all results."""
    meta = torch.empty(timing.size_of(shape), dtype=dtype, device="meta")
    fake = ops.OPERATIONS[operation].fake(meta, scale_layout=layout)
    return timing.nbytes(meta) + timing.nbytes(fake)


def measure_quantize(run: Run, shape: str, backend: str, **options: Any) -> None:
    """Measure a quantizing operation, ``quantize`` in bfloat16 unless ``options`` say otherwise."""
    dtype = options.pop("input_dtype", torch.bfloat16)
    operation = options.pop("operation", "quantize")
    layout = options.get("scale_layout", "linear")
    if backend not in ops.OPERATIONS[operation].backends:
        return
    if operation not in dispatch.BACKENDS[backend].launchers:
        return
    op = ops.OPERATIONS[operation].op(backend)
    run.measure(
        operation,
        shape,
        lambda x: op(x, **options),
        random_input(shape, dtype, run.device),
        total_bytes(shape, dtype, operation, layout),
        host=shape == "1x4096",
        backend=backend,
        input_dtype=str(dtype),
        **{key: str(value) for key, value in options.items()},
    )


def measure_dequantize(run: Run, shape: str, backend: str, layout: str) -> None:
    """Measure ``dequantize`` to bfloat16."""
    if "dequantize" not in dispatch.BACKENDS[backend].launchers:
        return
    op = ops.OPERATIONS["dequantize"].op(backend)
    quantize = ops.OPERATIONS["quantize"].op(backend)

    def make(index: int) -> Any:
        x = random_input(shape, torch.bfloat16, run.device)(index)
        return quantize(x, scale_layout=layout)

    run.measure(
        "dequantize",
        shape,
        lambda pair: op(*pair, scale_layout=layout),
        make,
        total_bytes(shape, torch.bfloat16, "quantize", layout),
        backend=backend,
        input_dtype="torch.bfloat16",
        scale_layout=layout,
    )


def measure_shape(run: Run, shape: str, backends: Sequence[str], others: bool) -> None:
    """Measure ``shape`` with every backend, the dispatcher and, if ``others``, with what competes."""
    for backend in backends:
        for layout in LAYOUTS:
            measure_quantize(run, shape, backend, scale_layout=layout)
        measure_dequantize(run, shape, backend, "linear")
        if shape in DETAILED:
            _measure_details(run, shape, backend)
        if shape in DETAILED or shape in ("512x7168", "4096x7168"):
            for operation in ("quantize_columnwise", "quantize_both"):
                measure_quantize(run, shape, backend, operation=operation)
                layout = "swizzled_32_4_4"
                measure_quantize(run, shape, backend, operation=operation, scale_layout=layout)
    total = total_bytes(shape, torch.bfloat16, "quantize", "linear")
    make = random_input(shape, torch.bfloat16, run.device)
    op = torch.ops.mxfp8.quantize.default
    run.measure("quantize", shape, op, make, total, host=shape == "1x4096", backend="dispatcher")
    if not others:
        return
    torch._dynamo.reset()
    # Inductor has no CPU code for float8_e8m0fnu: there, scales stay bytes.
    traced = reference.quantize_bytes if run.device.type == "cpu" else reference.quantize
    compiled = torch.compile(traced, fullgraph=True)
    run.measure("quantize", shape, compiled, make, total, backend="inductor")
    if shape != "16384x16384":
        run.measure("quantize", shape, reference.quantize, make, total, backend="eager")
    for name, (call, layout) in run.peers.items():
        bytes_moved = total_bytes(shape, torch.bfloat16, "quantize", layout)
        run.measure("quantize", shape, call, make, bytes_moved, backend=name)


def _measure_details(run: Run, shape: str, backend: str) -> None:
    for dtype in (torch.float16, torch.float32):
        for layout in LAYOUTS:
            measure_quantize(run, shape, backend, input_dtype=dtype, scale_layout=layout)
    for mode in ("floor", "ceil", "even"):
        measure_quantize(run, shape, backend, scaling_mode=mode)
    measure_quantize(run, shape, backend, dtype=torch.float8_e5m2)
    measure_dequantize(run, shape, backend, "swizzled_32_4_4")
