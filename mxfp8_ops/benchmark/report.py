"""The record and the plot of a run."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import __version__, platform


def is_plain(row: dict[str, Any]) -> bool:
    """Whether a row is a ``quantize`` of bfloat16 in the default mode and element type."""
    bf16 = row.get("input_dtype", "torch.bfloat16") == "torch.bfloat16"
    plain = not ({"scaling_mode", "dtype"} & row.keys())
    return row["what"] == "quantize" and "us" in row and bf16 and plain


def record(device_name: str, seconds: float, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of a run, in values that JSON knows."""
    return {
        "device": device_name,
        "torch": torch.__version__,
        "triton": platform.triton_version(),
        "mxfp8_ops": __version__,
        "date": datetime.date.today().isoformat(),
        "seconds": round(seconds),
        "rows": rows,
    }


def write(path: Path, run: dict[str, Any], echo: Callable[[str], None] = print) -> None:
    """Write a record to ``path`` as JSON and its plot next to it, as ``.png``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run, indent=1) + "\n")
    if not plot(run["rows"], run["device"], path.with_suffix(".png")):
        echo("matplotlib is not installed: no plot")


def plot(rows: list[dict[str, Any]], device_name: str, path: Path) -> bool:
    """Draw bandwidth over bytes moved, one line per backend and layout; False without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    lines: dict[str, list[tuple[int, float]]] = {}
    layouts: set[str] = set()  # names that end in one
    for row in filter(is_plain, rows):
        name = f"{row['backend']} {row.get('scale_layout', '')}".strip()
        if row.get("scale_layout"):
            layouts.add(name)
        lines.setdefault(name, []).append((row["bytes"], row["tb_s"]))
        lines.setdefault("copy", []).append((row["bytes"], row["tb_s"] / row["of_copy"]))
    fastest = max((y for points in lines.values() for _, y in points), default=0.0)
    unit, factor = ("TB/s", 1.0) if fastest >= 0.5 else ("GB/s", 1e3)
    figure = Figure(figsize=(9, 5.5))
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    colors: dict[str, str] = {}
    for name, points in sorted(lines.items()):
        xs, ys = zip(*sorted(set(points)), strict=True)
        source, _, layout = name.partition(" ") if name in layouts else (name, "", "")
        color = colors.setdefault(source, "black" if name == "copy" else f"C{len(colors)}")
        style = {"swizzled_32_4_4": ":", "swizzled_8x4": "-."}.get(layout, "-")
        axes.plot(
            xs,
            [y * factor for y in ys],
            label=name,
            color=color,
            linestyle="--" if name == "copy" else style,
            marker="" if name == "copy" else ".",
        )
    axes.set(xscale="log", xlabel="bytes moved", ylabel=unit, ylim=(0, None))
    axes.set_title(f"MXFP8 quantize, bfloat16, {device_name}")
    if lines:
        axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    return True
