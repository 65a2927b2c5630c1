"""Host time of a call to FlashInfer's cute-dsl kernel: alone, through our launcher, and through our op.

    MXFP8_OPS_CUTE_DSL_MIN_CAPABILITY=9.0 python benchmarks/flashinfer_adapter.py

The gate is lowered for Hopper only. Without a CUDA device or FlashInfer, a function that returns ready
outputs stands in for the package; the differences are then those of this machine's CPU. Each figure is
the median over rounds; the three kinds of call take turns within a round.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from mxfp8_ops import formats
from mxfp8_ops.backends import cute_dsl


def microseconds(call: Callable[[], Any], repeats: int, synchronize: Callable[[], None]) -> float:
    """Host time per call, queued in groups small enough that the launch queue never fills."""
    total = 0.0
    for _ in range(repeats // 50):
        synchronize()
        start = time.perf_counter()
        for _ in range(50):
            call()
        total += time.perf_counter() - start
    synchronize()
    return total / (repeats // 50 * 50) * 1e6


def stand_in(shape: tuple[int, int], scale_layout: str) -> cute_dsl._Quantizer:
    data_shape, scale_shape = formats.quantized_shapes(shape, scale_layout, None)
    outputs = (
        torch.empty(data_shape, dtype=torch.float8_e4m3fn),
        torch.empty(scale_shape, dtype=torch.uint8).flatten(),
    )

    def mxfp8_quantize(
        input: torch.Tensor,
        is_sf_swizzled_layout: bool = True,
        alignment: int = 32,
        enable_pdl: bool | None = None,
        backend: str = "cuda",
        sf_swizzle_layout: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return outputs

    choice = {"is_sf_swizzled_layout": scale_layout != "linear", "sf_swizzle_layout": None}
    return cute_dsl._Quantizer(mxfp8_quantize, {scale_layout: choice}, "stand-in", False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()

    reason = "no CUDA device"
    if torch.cuda.is_available():
        reason = cute_dsl.BACKEND.unavailable_reason(torch.device("cuda", 0))
    device = "cpu" if reason else "cuda"
    print(f"stand-in for FlashInfer: {reason}" if reason else f"on {torch.cuda.get_device_name()}")
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    print(f"{'shape':>12} {'layout':>16} {'FlashInfer':>11} {'launcher':>9} {'op':>7}   added (us)")

    for shape in ((1, 4096), (128, 7168)):
        for scale_layout in ("linear", "swizzled_32_4_4", "swizzled_8x4"):
            x = torch.randn(shape, device=device).bfloat16()
            found = stand_in(shape, scale_layout) if reason else cute_dsl.quantizer()
            assert not isinstance(found, str)
            choice = found.layouts[scale_layout]
            if reason:
                cute_dsl.quantizer = lambda found=found: found  # type: ignore[assignment]
            calls: dict[str, Callable[[], Any]] = {
                "FlashInfer": lambda x=x, f=found.function, c=choice: f(
                    input=x, alignment=32, backend="cute-dsl", **c
                ),
                "launcher": lambda x=x, s=scale_layout: cute_dsl.launch_quantize(x, scale_layout=s),
            }
            if not reason:
                calls["op"] = functools.partial(
                    torch.ops.mxfp8.quantize_cute_dsl.default, x, scale_layout=scale_layout
                )
            for call in calls.values():
                microseconds(call, 100, synchronize)
            times: dict[str, list[float]] = {name: [] for name in calls}
            for _ in range(arguments.rounds):
                for name, call in calls.items():
                    times[name].append(microseconds(call, arguments.repeats, synchronize))
            median = {name: statistics.median(t) for name, t in times.items()}
            added = [
                f"{name} {median[name] - median['FlashInfer']:.2f}"
                for name in calls
                if name != "FlashInfer"
            ]
            figures = " ".join(
                f"{median[n]:>{w}.2f}" if n in median else " " * w
                for n, w in (("FlashInfer", 11), ("launcher", 9), ("op", 7))
            )
            print(f"{shape!s:>12} {scale_layout:>16} {figures}   {', '.join(added)}")


if __name__ == "__main__":
    main()
