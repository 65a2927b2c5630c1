"""Conversion of a checkpoint, tensor by tensor in bounded memory, that can be interrupted and resumed."""

from __future__ import annotations

import contextlib
import ctypes
import json
import shutil
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import Any

import torch

from .. import api, formats
from . import ranks
from .errors import CheckpointError
from .output import Output
from .plan import Options, Plan, make_plan
from .report import TensorReport, Totals
from .source import TensorInfo, pieces, read_json, read_metadata
from .writer import Writer, describe, item_size, partial_path, replace_file

# Bytes of x that are quantized at once: temporaries take about ten times as much on the way.
_PIECE_CPU = 4 << 20
_PIECE_DEVICE = 64 << 20
_PIECES_BETWEEN_TRIMS = 2


def _trim() -> None:
    """Give freed memory back to the system.

    glibc before 2.38 does not use freed aligned blocks again, and all of torch's are aligned: without this
    the process grows by three times a tensor while the tensor is converted.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


Progress = Callable[[str, TensorInfo], None]
"""Called with a file's name and a tensor before the tensor is converted."""


def convert(
    input: str | Path,
    output: str | Path,
    options: Options | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Convert a checkpoint to MXFP8.

    Files are written under another name and renamed when whole; interrupted, the same call goes on with
    the files that are missing and gives the same bytes. Under torchrun each rank converts its share of the
    files, and rank 0 writes the rest; all ranks must see the same folders. The input is only read.

    Args:
        input: a safetensors file or a Hugging Face model folder, in bfloat16, float16 or float32.
        output: a file for a file, a folder for a folder; must not be in the input or contain it.
        options: how to convert; None means ``Options()``.
        overwrite: replace what ``output`` holds, instead of refusing.
        progress: called before each tensor, from several threads where ``options.jobs`` > 1.

    Returns:
        The report, which is also written: ``tensors`` with the signal-to-noise ratio of each,
        ``ignored`` modules, ``warnings``, ``source`` and ``output``.

    Raises:
        CheckpointError: something cannot be read or written, or belongs to another conversion.
    """
    plan = make_plan(input, options)
    if not any(reason is None for _, _, reason in plan.tensors()):
        raise CheckpointError(
            f"{input} has no weight to quantize: its {sum(1 for _ in plan.tensors())} tensors are all "
            "left as they are; a dry run gives the reasons"
        )
    target = Output.of(plan, Path(output))
    with ranks.joined() as group:
        if group.rank == 0:
            finished = target.prepare(overwrite)
        group.barrier()
        if group.rank != 0:
            finished = target.finished()
        if finished is not None:
            return finished
        _convert_files(plan, target, group.share(sorted(plan.source.files)), progress)
        group.barrier()
        if group.rank == 0:
            report = _finish(plan, target)
        group.barrier()
        return report if group.rank == 0 else target.read_report()


def _convert_files(plan: Plan, target: Output, files: list[str], progress: Progress | None) -> None:
    stop = Event()

    def work(file: str) -> None:
        try:
            if target.state_of(file) is None:
                target.set_state(file, convert_file(plan, file, target.path(file), stop, progress))
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(plan.options.jobs, "mxfp8_ops.convert") as pool:
        futures = [pool.submit(work, file) for file in files]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:  # an error of a file, or an interrupt of this thread
            if not all(future.done() for future in futures):
                stop.set()
                pool.shutdown(cancel_futures=True)
    errors = [e for f in futures if not f.cancelled() and (e := f.exception()) is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, _Stopped)):
        raise error


class _Stopped(CheckpointError):
    """Another file failed first."""


def convert_file(
    plan: Plan, file: str, path: Path, stop: Event, progress: Progress | None = None
) -> list[TensorReport]:
    """Convert one file of ``plan`` to ``path``."""
    source, reasons = plan.source.root / file, plan.reasons[file]
    infos = plan.source.files[file]
    outputs = []
    for info in infos.values():
        if reasons[info.name] is not None:
            outputs.append(info)
            continue
        scale_shape = (info.shape[0], info.shape[1] // formats.BLOCK_SIZE)
        outputs.append(TensorInfo(info.name, "F8_E4M3", info.shape))
        outputs.append(TensorInfo(plan.target.scale_name(info.name), "U8", scale_shape))
    metadata = {"format": "pt", **read_metadata(source)}
    if plan.source.config is None:  # a single file carries what config.json would say
        metadata["quantization_config"] = json.dumps(plan.target.config(plan.ignored()))
    reports = []
    with Writer(path, outputs, metadata) as writer:
        for info in infos.values():
            if stop.is_set():
                raise _Stopped(f"{file} was given up because another file failed")
            if progress is not None:
                progress(file, info)
            reason = reasons[info.name]
            if reason is None:
                reports.append(_quantize(plan, source, info, writer))
            else:
                for first, rows in pieces(source, info, _PIECE_DEVICE):
                    writer.write(info.name, first, rows)
                reports.append(TensorReport.left(file, info, reason))
    return reports


def _quantize(plan: Plan, source: Path, info: TensorInfo, writer: Writer) -> TensorReport:
    options, totals = plan.options, Totals()
    device = torch.device(options.device)
    scale_name = plan.target.scale_name(info.name)
    size = _PIECE_CPU if device.type == "cpu" else _PIECE_DEVICE
    for number, (first, rows) in enumerate(pieces(source, info, size)):
        x = rows.to(device)
        data, scale = api.quantize(x, scaling_mode=options.scaling_mode, backend=options.backend)
        writer.write(info.name, first, data.cpu())
        writer.write(scale_name, first, scale.view(torch.uint8).cpu())
        totals.add(x, data, scale)
        if number % _PIECES_BETWEEN_TRIMS == _PIECES_BETWEEN_TRIMS - 1:
            _trim()
    _trim()
    return TensorReport.quantized(source.name, info, totals)


def _finish(plan: Plan, target: Output) -> dict[str, Any]:
    """Write everything that is not a file of tensors; the report comes last."""
    ignored, source = plan.ignored(), plan.source
    rows = [asdict(row) for file in sorted(source.files) for row in target.rows_of(file)]
    if source.index is not None:
        replace_file(target.root / source.index, _json(_index(plan, source.root / source.index)))
    for name in source.others:
        to = target.root / name
        partial = partial_path(to)
        try:
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.root / name, partial)
            partial.replace(to)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise CheckpointError(f"{name} cannot be copied to {to}: {describe(error)}") from None
    if source.config is not None:
        for name, content in plan.target.other_files(ignored).items():
            replace_file(target.root / name, _json(content))
        config = {**source.config, "quantization_config": plan.target.config(ignored)}
        replace_file(target.root / "config.json", _json(config))
    report = {
        "source": str(plan.path.resolve()),
        "output": str(target.output),
        "fingerprint": plan.fingerprint(),
        "sizes": target.sizes(),
        "ignored": ignored,
        "warnings": plan.warnings(),
        "tensors": rows,
    }
    replace_file(target.report, _json(report))
    target.forget_state()
    return report


def _index(plan: Plan, original: Path) -> dict[str, Any]:
    weight_map, total = {}, 0
    for file, info, reason in plan.tensors():
        weight_map[info.name] = file
        if reason is None:
            weight_map[plan.target.scale_name(info.name)] = file
        total += output_bytes(info, reason)
    metadata = read_json(original).get("metadata")
    metadata = {**(metadata if isinstance(metadata, dict) else {}), "total_size": total}
    return {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}


def output_bytes(info: TensorInfo, reason: str | None) -> int:
    """Bytes of a tensor in the result, its scale included."""
    if reason is not None:
        return info.numel * item_size(info)
    return info.numel + info.numel // formats.BLOCK_SIZE


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
