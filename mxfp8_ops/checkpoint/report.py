"""Signal and noise of converted tensors: totals, rows of the report, a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import api, formats
from .errors import CheckpointError
from .source import TensorInfo


class Totals:
    """Sums over the pieces of a tensor; blocks with a NaN or an infinity are counted, not summed."""

    def __init__(self) -> None:
        self.signal = self.noise = 0.0
        self.not_finite = 0

    def add(self, x: torch.Tensor, data: torch.Tensor, scale: torch.Tensor) -> None:
        """Add what ``quantize(x)`` has made of a piece."""
        back = api.dequantize(data, scale, dtype=torch.float32)
        bad = scale.view(torch.uint8) == formats.E8M0_NAN
        self.not_finite += int(bad.sum())
        self.add_pair(x.float(), back, ~bad.repeat_interleave(formats.BLOCK_SIZE, -1))

    def add_pair(self, exact: torch.Tensor, back: torch.Tensor, finite: torch.Tensor) -> None:
        """Add fp32 values and what came back, where ``finite`` says that they are numbers."""
        if not finite.all():
            exact, back = (torch.where(finite, t, 0.0) for t in (exact, back))
        self.signal += float(torch.linalg.vector_norm(exact)) ** 2
        self.noise += float(torch.linalg.vector_norm(back - exact)) ** 2

    def snr_db(self) -> float | None:
        """Signal-to-noise ratio in dB; None where one of them is 0 or too large for a number."""
        if not (0 < self.signal < math.inf and 0 < self.noise < math.inf):
            return None
        return 10 * math.log10(self.signal / self.noise)


@dataclass(frozen=True)
class TensorReport:
    """A row of the report.

    Attributes:
        file: name of the file.
        name: name of the tensor.
        dtype: its type in the original, in names of safetensors.
        shape: its shape.
        reason: why it was left as it is; None where it was quantized.
        snr_db: ``10 log10(sum x^2 / sum (x - dequantized)^2)``; None without noise or signal.
        not_finite_blocks: blocks of 32 that contain a NaN or an infinity, which become NaN.
    """

    file: str
    name: str
    dtype: str
    shape: Sequence[int]
    reason: str | None
    snr_db: float | None = None
    not_finite_blocks: int = 0

    @classmethod
    def left(cls, file: str, info: TensorInfo, reason: str) -> TensorReport:
        """Row of a tensor that was copied."""
        return cls(file, info.name, info.dtype, list(info.shape), reason)

    @classmethod
    def quantized(cls, file: str, info: TensorInfo, totals: Totals) -> TensorReport:
        """Row of a quantized tensor."""
        snr = totals.snr_db()
        return cls(file, info.name, info.dtype, list(info.shape), None, snr, totals.not_finite)


def plot(report: dict[str, Any], path: Path) -> None:
    """Draw the signal-to-noise ratio of every quantized tensor, in the order of the files.

    Raises:
        CheckpointError: matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise CheckpointError("the plot needs matplotlib: pip install matplotlib") from None
    rows = [r for r in report["tensors"] if r["snr_db"] is not None]
    figure = Figure(figsize=(9, 4.5))
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    groups: dict[str, list[tuple[int, float]]] = {}
    for place, row in enumerate(rows):
        kind = row["name"].removesuffix(".weight").rpartition(".")[2]
        groups.setdefault(kind, []).append((place, row["snr_db"]))
    for kind, points in sorted(groups.items()):
        axes.plot(*zip(*points, strict=True), ".", label=kind)
    axes.set(xlabel="quantized tensor", ylabel="signal to noise, dB")
    axes.set_title(f"{Path(report['source']).name}: {len(rows)} tensors in MXFP8")
    if 0 < len(groups) <= 16:
        axes.legend(fontsize=7, ncols=2)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
