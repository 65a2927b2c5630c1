"""Every backend on one GPU against copy, the Inductor-compiled reference and importable peers.

    python benchmarks/gpu.py [--quick] [--shapes 1x4096,8192x8192] [--backends triton,cuda] [--output DIR]

Kernel time: a CUDA graph of many calls over rotating inputs that together exceed L2 four times (as far
as 4 GiB go), median of replays. Host time: wall time of an eager call without waiting for the device.
Bytes: input + data + scales. Copy is the faster of ``copy_`` and a Triton copy kernel moving as many
bytes. Prints a table and a summary against the targets; writes gpu.json and gpu.png to DIR.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import mxfp8_ops
from mxfp8_ops import dispatch, formats, ops, reference

SHAPES = (
    *("1x4096", "128x7168", "512x7168", "8192x8192", "16384x16384", "4096x7168", "1024x8192"),
    *("1x7168", "3x4096", "130x2880", "16x4096", "4096x96", "4096x160", "130x7168"),
)
QUICK = ["1x4096", "128x7168", "512x7168", "8192x8192", "16384x16384"]
DETAILED = {"8192x8192", "16384x16384"}  # all layouts, dtypes, modes
LAYOUTS = tuple(formats.SCALE_LAYOUTS)


def size_of(shape: str) -> tuple[int, int]:
    rows, columns = shape.split("x")
    return int(rows), int(columns)


def nbytes(tensors: Any) -> int:
    if isinstance(tensors, torch.Tensor):
        tensors = (tensors,)
    return sum(t.numel() * t.element_size() for t in tensors)


def copies_for(total: int, l2: int) -> int:
    """Rotating inputs: four times L2, at most 128 tensors and 4 GiB."""
    return max(1, min(128, -(-4 * l2 // total), (4 << 30) // total))


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


def host_time(call: Callable[[Any], Any], x: Any) -> float:
    """Seconds that an eager call keeps the host busy."""
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            call(x)
        best = min(best, (time.perf_counter() - start) / 200)
    torch.cuda.synchronize()
    return best


def copy_kernel() -> Callable[[torch.Tensor, torch.Tensor], None] | None:
    try:
        from copy_kernel import launch_copy
    except Exception:
        return None
    return launch_copy


def copy_time(total: int, l2: int, budget: float) -> float:
    """Seconds of the best copy that reads total / 2 bytes and writes as many."""
    half = max(total // 2 // 16 * 16, 16)
    count = copies_for(2 * half, l2)
    pairs = [
        tuple(torch.empty(half, dtype=torch.uint8, device="cuda") for _ in range(2))
        for _ in range(count)
    ]
    times = [graph_time(lambda p: p[1].copy_(p[0]), pairs, budget)]
    launch = copy_kernel()
    if launch is not None:
        times.append(graph_time(lambda p: launch(p[0], p[1]), pairs, budget))
    return min(times)


def peers() -> dict[str, tuple[Callable[[torch.Tensor], Any], str]]:
    """Importable quantizers of other projects: name to (call, layout)."""
    found: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {}
    try:
        from torchao.prototype.mx_formats.kernels import triton_to_mxfp8_dim0

        found["torchao"] = (lambda x: triton_to_mxfp8_dim0(x, inner_block_size=32), "linear")
    except Exception as error:
        print(f"torchao left out: {type(error).__name__}")
    try:
        import flashinfer

        # Its backend "cuda" computes nothing below compute capability 10.0.
        backend = "cuda" if torch.cuda.get_device_capability() >= (10, 0) else "cute-dsl"
        for swizzled, layout in ((False, "linear"), (True, "swizzled_32_4_4")):
            found[f"flashinfer {backend} {layout}"] = (
                lambda x, s=swizzled: flashinfer.mxfp8_quantize(x, s, 32, backend=backend),
                layout,
            )
    except Exception as error:
        print(f"flashinfer left out: {type(error).__name__}")
    try:
        import transformer_engine.pytorch as te
        import transformer_engine_torch as tex

        quantizer = te.MXFP8Quantizer(tex.DType.kFloat8E4M3, columnwise=False)
        found["transformer_engine"] = (quantizer, "linear")
    except Exception as error:
        print(f"transformer_engine left out: {type(error).__name__}")
    return found


class Run:
    """Collects rows and prints each as it is measured."""

    def __init__(self, budget: float) -> None:
        self.rows: list[dict[str, Any]] = []
        self.budget = budget
        self.l2 = torch.cuda.get_device_properties(0).L2_cache_size
        self.copies: dict[int, float] = {}

    def copy(self, total: int) -> float:
        if total not in self.copies:
            self.copies[total] = copy_time(total, self.l2, self.budget)
        return self.copies[total]

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
        row: dict[str, Any] = {"what": what, "shape": shape, "bytes": total, **labels}
        try:
            inputs = [make(i) for i in range(copies_for(total, self.l2))]
            call(inputs[0])
            seconds = graph_time(call, inputs, self.budget)
            row["us"] = seconds * 1e6
            row["tb_s"] = total / seconds / 1e12
            row["of_copy"] = self.copy(total) / seconds
            if host:
                row["host_us"] = host_time(call, inputs[0]) * 1e6
            text = f"{row['us']:9.2f} us {row['tb_s']:6.3f} TB/s {row['of_copy']:5.3f} of copy"
            text += f" host {row['host_us']:.1f} us" if host else ""
        except mxfp8_ops.BackendUnavailableError:
            return  # outside the backend's domain
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {str(error)[:200]}"
            text = row["error"][:90]
            torch.cuda.synchronize()
        self.rows.append(row)
        name = " ".join([what, *[str(v).removeprefix("torch.") for v in labels.values()]])
        print(f"{shape:>12} {name:<62} {text}", flush=True)


def random_input(shape: str, dtype: torch.dtype) -> Callable[[int], torch.Tensor]:
    def make(seed: int) -> torch.Tensor:
        return torch.randn(size_of(shape), dtype=dtype, device="cuda")

    return make


def total_bytes(shape: str, dtype: torch.dtype, operation: str, layout: str) -> int:
    meta = torch.empty(size_of(shape), dtype=dtype, device="meta")
    fake = ops.OPERATIONS[operation].fake(meta, scale_layout=layout)
    return nbytes(meta) + nbytes(fake)


def measure_quantize(run: Run, shape: str, backend: str, **options: Any) -> None:
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
        random_input(shape, dtype),
        total_bytes(shape, dtype, operation, layout),
        host=shape == "1x4096",
        backend=backend,
        input_dtype=str(dtype),
        **{key: str(value) for key, value in options.items()},
    )


def measure_dequantize(run: Run, shape: str, backend: str, layout: str) -> None:
    if "dequantize" not in dispatch.BACKENDS[backend].launchers:
        return
    op = ops.OPERATIONS["dequantize"].op(backend)
    quantize = ops.OPERATIONS["quantize"].op(backend)

    def make(seed: int) -> Any:
        return quantize(random_input(shape, torch.bfloat16)(seed), scale_layout=layout)

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


def measure_shape(run: Run, shape: str, backends: list[str], others: bool) -> None:
    for backend in backends:
        for layout in LAYOUTS:
            measure_quantize(run, shape, backend, scale_layout=layout)
        measure_dequantize(run, shape, backend, "linear")
        if shape in DETAILED:
            for dtype in (torch.float16, torch.float32):
                for layout in LAYOUTS:
                    measure_quantize(run, shape, backend, input_dtype=dtype, scale_layout=layout)
            for mode in ("floor", "ceil", "even"):
                measure_quantize(run, shape, backend, scaling_mode=mode)
            measure_quantize(run, shape, backend, dtype=torch.float8_e5m2)
            measure_dequantize(run, shape, backend, "swizzled_32_4_4")
        if shape in DETAILED or shape in ("512x7168", "4096x7168"):
            for operation in ("quantize_columnwise", "quantize_both"):
                measure_quantize(run, shape, backend, operation=operation)
                layout = "swizzled_32_4_4"
                measure_quantize(run, shape, backend, operation=operation, scale_layout=layout)
    total = total_bytes(shape, torch.bfloat16, "quantize", "linear")
    make = random_input(shape, torch.bfloat16)
    op = torch.ops.mxfp8.quantize.default
    run.measure("quantize", shape, op, make, total, host=shape == "1x4096", backend="dispatcher")
    if not others:
        return
    torch._dynamo.reset()
    compiled = torch.compile(reference.quantize, fullgraph=True)
    run.measure("quantize", shape, compiled, make, total, backend="inductor")
    if shape != "16384x16384":
        run.measure("quantize", shape, reference.quantize, make, total, backend="eager")
    for name, (call, layout) in peers().items():
        bytes_moved = total_bytes(shape, torch.bfloat16, "quantize", layout)
        run.measure("quantize", shape, call, make, bytes_moved, backend=name)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("matplotlib is not installed: no plot")
        return
    figure, axes = plt.subplots(figsize=(9, 5.5))
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        bf16 = row.get("input_dtype", "torch.bfloat16") == "torch.bfloat16"
        plain = not ({"scaling_mode", "dtype"} & row.keys())
        if row["what"] == "quantize" and "us" in row and bf16 and plain:
            name = f"{row['backend']} {row.get('scale_layout', '')}".strip()
            lines.setdefault(name, []).append((row["bytes"], row["tb_s"]))
            lines.setdefault("copy", []).append((row["bytes"], row["tb_s"] / row["of_copy"]))
    for name, points in sorted(lines.items()):
        xs, ys = zip(*sorted(set(points)), strict=True)
        style = {"color": "black", "linestyle": "--"} if name == "copy" else {"marker": "."}
        axes.plot(xs, ys, label=name, **style)
    axes.set(xscale="log", xlabel="bytes moved", ylabel="TB/s", ylim=(0, None))
    axes.set_title(f"MXFP8 quantize, bfloat16, {torch.cuda.get_device_name(0)}")
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def summary(rows: list[dict[str, Any]], backends: list[str]) -> None:
    """Compact: what the targets of an H200 ask for, worst variant first."""
    print("\nsummary (minimum over layouts, modes and types of what was measured)")
    for backend in backends:
        own = [r for r in rows if r["backend"] == backend and "us" in r]
        failed = [r for r in rows if r["backend"] == backend and "error" in r]
        for shape, target in (("16384x16384", 1.0), ("8192x8192", 0.97), ("512x7168", 0.9)):
            found = [r for r in own if r["shape"] == shape and r["what"] == "quantize"]
            if found:
                worst = min(found, key=lambda r: r["of_copy"])
                best = max(r["of_copy"] for r in found)
                which = f"{worst.get('input_dtype')} {worst.get('scale_layout', 'linear')}"
                print(
                    f"{backend:9} {shape:12} {worst['of_copy']:.3f} to {best:.3f} "
                    f"(target {target}) {which}"
                )
        for shape, limit in (("1x4096", 1.9), ("128x7168", 3.0)):
            found = [r for r in own if r["shape"] == shape and r["what"] == "quantize"]
            if found:
                text = ", ".join(f"{r.get('scale_layout')} {r['us']:.2f}" for r in found)
                print(f"{backend:9} {shape:12} us: {text} (limit {limit})")
        for what, target in (
            ("dequantize", 0.98),
            ("quantize_columnwise", 0.9),
            ("quantize_both", 0.9),
        ):
            found = [r for r in own if r["shape"] == "8192x8192" and r["what"] == what]
            text = ", ".join(f"{r.get('scale_layout', 'linear')} {r['of_copy']:.3f}" for r in found)
            if found:
                print(f"{backend:9} {what} 8192x8192: {text} (target {target})")
        for r in failed[:3]:
            print(f"{backend:9} FAILED {r['what']} {r['shape']}: {r['error'][:100]}")
    for row in rows:
        if row["shape"] == "1x4096" and "host_us" in row:
            layout = row.get("scale_layout", "linear")
            print(f"host 1x4096 {row['backend']} {layout}: {row['host_us']:.1f} us")
    for shape in dict.fromkeys(r["shape"] for r in rows):
        others = [
            f"{r['backend']} {r['us']:.2f}"
            for r in rows
            if r["shape"] == shape
            and r["what"] == "quantize"
            and "us" in r
            and r.get("scale_layout", "linear") == "linear"
            and r.get("input_dtype", "torch.bfloat16") == "torch.bfloat16"
            and not ({"scaling_mode", "dtype"} & r.keys())
        ]
        print(f"{shape:>12} us: {', '.join(others)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the target shapes, without peers")
    parser.add_argument("--shapes", help="comma-separated, like 1x4096,8192x8192")
    parser.add_argument("--backends", help="comma-separated; default: all that are available")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA or ROCm device, and torch sees none")
        return 1
    device = torch.device("cuda", torch.cuda.current_device())
    backends = []
    wanted = options.backends.split(",") if options.backends else ["triton", "cuda", "cute_dsl"]
    for name in wanted:
        reason = dispatch.unavailable_reason(dispatch.backend_named(name), device)
        if reason is None:
            backends.append(name)
        else:
            print(f"backend {name} left out: {reason}")
    shapes = options.shapes.split(",") if options.shapes else QUICK if options.quick else SHAPES
    run = Run(budget=0.02 if options.quick else 0.04)
    started = time.time()
    for shape in shapes:
        measure_shape(run, shape, backends, others=not options.quick)
    summary(run.rows, backends)
    options.output.mkdir(parents=True, exist_ok=True)
    record = {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "mxfp8_ops": mxfp8_ops.__version__,
        "date": datetime.date.today().isoformat(),
        "seconds": round(time.time() - started),
        "rows": run.rows,
    }
    (options.output / "gpu.json").write_text(json.dumps(record, indent=1) + "\n")
    plot(run.rows, options.output / "gpu.png")
    print(f"{record['seconds']} s, {record['device']}, torch {record['torch']}, {options.output}")
    return 0


def _version(package: str) -> str | None:
    from mxfp8_ops.platform import package_version

    return package_version(package)


if __name__ == "__main__":
    sys.exit(main())
