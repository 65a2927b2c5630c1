"""Reading a converted checkpoint back and comparing it with the original."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import api, formats
from .errors import CheckpointError
from .output import REPORT, read_report
from .report import Totals
from .source import TensorInfo, opened, pieces, read_json, read_metadata, read_tensors
from .targets import TARGETS

READERS = ("compressed-tensors", "mxfp8_ops")

_PIECE = 4 << 20

Decompress = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class CheckedTensor:
    """A quantized tensor read back.

    Attributes:
        name: name of the weight.
        snr_db: signal-to-noise ratio of what the reader returned.
        outside: elements further from the original than the format's rounding allows.
        problem: a sentence where the tensor is not what the format says, else None.
    """

    name: str
    snr_db: float | None
    outside: int
    problem: str | None = None

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.problem is None and self.outside == 0


def check(
    output: str | Path, source: str | Path | None = None, reader: str = "compressed-tensors"
) -> list[CheckedTensor]:
    """Read what ``convert`` wrote and compare every tensor with the original.

    Copied tensors must have the same bytes. An element of a quantized one may differ by half a unit in the
    last place of its code: by ``max(|x| / 16, scale * 2**-10)``, and in the floor and even modes, which
    saturate, by ``|x| / 8``.

    Args:
        output: the converted file or folder.
        source: the original; None means the one that the report names.
        reader: ``"compressed-tensors"`` dequantizes with that package, as vLLM's and transformers' loader
            does, from config.json and the tensors alone; ``"mxfp8_ops"`` with this one.

    Returns:
        One row for each quantized tensor, and for each copied one that is not as in the original.

    Raises:
        CheckpointError: the result or the original cannot be read, or the reader is not there.
        ValueError: the reader is not one of the above.
    """
    if reader not in READERS:
        raise ValueError(f"reader must be one of {', '.join(map(repr, READERS))}, got {reader!r}")
    path = Path(output)
    is_folder = path.is_dir()
    report = read_report(path / REPORT if is_folder else path.with_name(f"{path.stem}.{REPORT}"))
    original = Path(report["source"] if source is None else source)
    if not original.exists():
        raise CheckpointError(
            f"the original {original} does not exist; name the place where it is now"
        )
    target = TARGETS[report["fingerprint"]["target"]]
    decompress: Decompress = _dequantize
    if reader == "compressed-tensors":
        if target.name != "compressed-tensors":
            raise CheckpointError(
                f"{path} is of the format {target.name!r}, which the package compressed-tensors does not "
                "read; the reader 'mxfp8_ops' does"
            )
        decompress = _compressed_tensors(_quantization_config(path))
    saturates = report["fingerprint"]["scaling_mode"] in ("floor", "even")
    checked, headers = [], {}
    for row in report["tensors"]:
        file = path / row["file"] if is_folder else path
        before = original / row["file"] if original.is_dir() else original
        for place in (file, before):
            if place not in headers:
                headers[place] = read_tensors(place)
        info = headers[before].get(row["name"])
        if info is None:
            raise CheckpointError(f"{before} does not contain {row['name']!r}")
        if row["reason"] is not None:
            problem = _copy_problem(before, file, info, headers[file].get(info.name))
            if problem is not None:
                checked.append(CheckedTensor(info.name, None, 0, problem))
            continue
        scale_name = target.scale_name(row["name"])
        problem = _problem(headers[file], info, scale_name)
        if problem is not None:
            checked.append(CheckedTensor(row["name"], None, 0, problem))
            continue
        checked.append(_compare(before, file, info, scale_name, decompress, saturates))
    return checked


def _problem(found: dict[str, TensorInfo], info: TensorInfo, scale_name: str) -> str | None:
    columns = info.shape[1] // formats.BLOCK_SIZE
    expected = (
        TensorInfo(info.name, "F8_E4M3", info.shape),
        TensorInfo(scale_name, "U8", (info.shape[0], columns)),
    )
    problems = (_header_problem(wanted, found.get(wanted.name)) for wanted in expected)
    return next((problem for problem in problems if problem is not None), None)


def _header_problem(wanted: TensorInfo, got: TensorInfo | None) -> str | None:
    if got is None:
        return f"{wanted.name} is missing"
    if got != wanted:
        return (
            f"{wanted.name} is {got.dtype} {list(got.shape)}, "
            f"expected {wanted.dtype} {list(wanted.shape)}"
        )
    return None


def _copy_problem(
    before: Path, after: Path, info: TensorInfo, got: TensorInfo | None
) -> str | None:
    problem = _header_problem(info, got)
    if problem is not None or info.numel == 0:
        return problem
    pairs = zip(pieces(before, info, _PIECE), pieces(after, info, _PIECE), strict=True)
    same = all(
        torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (x, y)))
        for (_, x), (_, y) in pairs
    )
    return None if same else f"{info.name} was copied and has other bytes than the original"


def _compare(
    before: Path,
    after: Path,
    info: TensorInfo,
    scale_name: str,
    decompress: Decompress,
    saturates: bool,
) -> CheckedTensor:
    totals, outside = Totals(), 0
    with opened(after) as file:
        data_of, scale_of = file.get_slice(info.name), file.get_slice(scale_name)
        for first, rows in pieces(before, info, _PIECE):
            last = first + rows.shape[0]
            data, scale = data_of[first:last], scale_of[first:last]
            back, exact = decompress(data, scale).float(), rows.float()
            step = (
                scale.view(torch.float8_e8m0fnu).float().repeat_interleave(formats.BLOCK_SIZE, -1)
            )
            allowed = torch.maximum(exact.abs() / (8 if saturates else 16), step * 2.0**-10)
            # From the original: a scale or an element that was damaged into a NaN must not hide itself.
            blocks = exact.isfinite().unflatten(-1, (-1, formats.BLOCK_SIZE)).all(-1)
            finite = blocks.repeat_interleave(formats.BLOCK_SIZE, -1)
            outside += int((~((back - exact).abs() <= allowed) & finite).sum())
            outside += int(((scale != formats.E8M0_NAN) & ~blocks).sum()) * formats.BLOCK_SIZE
            totals.add_pair(exact, back, finite)
    return CheckedTensor(info.name, totals.snr_db(), outside)


def _dequantize(data: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return api.dequantize(data, scale.view(torch.float8_e8m0fnu), dtype=torch.float32)


def _quantization_config(path: Path) -> dict[str, Any]:
    if path.is_dir():
        config = read_json(path / "config.json").get("quantization_config")
    else:
        config = json.loads(read_metadata(path).get("quantization_config", "null"))
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} has no quantization_config")
    return config


def _compressed_tensors(config: dict[str, Any]) -> Decompress:
    """Decompression by the package, with the scheme that it parses from ``config``."""
    try:
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationConfig
    except ImportError as error:
        raise CheckpointError(
            f"the check needs the package compressed-tensors ({error}): pip install compressed-tensors"
        ) from None
    try:
        parsed = QuantizationConfig.model_validate(config)
        (scheme,) = parsed.config_groups.values()
        compressor = BaseCompressor.get_value_from_registry(parsed.format)
    except Exception as error:  # pydantic's and the registry's own
        version = importlib.metadata.version("compressed-tensors")
        raise CheckpointError(
            f"compressed-tensors {version} does not read the quantization_config: {error}"
        ) from None

    def decompress(data: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return compressor.decompress({"weight": data, "weight_scale": scale}, scheme)["weight"]

    return decompress
