"""Reading checkpoints: which tensors are in which file, and their values piece by piece."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .errors import CheckpointError

INDEX_SUFFIX = ".safetensors.index.json"
QUANTIZED_MARK = "hf_quant_config.json"
"""ModelOpt's file, by which engines take a folder for quantized."""


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a safetensors file: ``dtype`` in the names of the format, such as ``BF16``."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """``path`` opened by the safetensors library; CheckpointError for anything that is wrong with it."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise CheckpointError(
            "checkpoints need the package safetensors: pip install safetensors"
        ) from None
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def read_tensors(path: Path) -> dict[str, TensorInfo]:
    """Names, types and shapes of the tensors of one file, from its header."""
    with opened(path) as file:
        found = {}
        for name in sorted(file.keys()):
            piece = file.get_slice(name)
            found[name] = TensorInfo(name, piece.get_dtype(), tuple(piece.get_shape()))
        return found


def read_metadata(path: Path) -> dict[str, str]:
    """The free-form metadata of one file."""
    with opened(path) as file:
        return dict(file.metadata() or {})


def pieces(path: Path, info: TensorInfo, size: int) -> Iterator[tuple[int, torch.Tensor]]:
    """``(first row, rows)`` of a tensor, about ``size`` bytes each; a scalar is one piece.

    The file is mapped anew for every tensor: what was read of others no longer counts as memory in use.
    """
    with opened(path) as file:
        if not info.shape:
            yield 0, file.get_tensor(info.name)
            return
        rows = info.shape[0]
        view = file.get_slice(info.name)
        itemsize = file.get_slice(info.name)[:0].dtype.itemsize if rows else 1
        step = max(1, size * rows // max(1, info.numel * itemsize))
        for first in range(0, rows, step):
            yield first, view[first : min(first + step, rows)]


@dataclass(frozen=True)
class Source:
    """A checkpoint: one safetensors file, or a model folder.

    Attributes:
        root: the folder.
        files: names of the safetensors files, each with its tensors.
        config: ``config.json`` of a folder; None for a file.
        index: name of the index file of a sharded folder, None where there is none.
        others: names of the other files of a folder, which are copied.
    """

    root: Path
    files: dict[str, dict[str, TensorInfo]]
    config: dict[str, Any] | None
    index: str | None
    others: tuple[str, ...]

    @classmethod
    def open(cls, path: Path) -> Source:
        """Read the headers of ``path``; CheckpointError where something does not fit together."""
        if path.is_file():
            if path.suffix != ".safetensors":
                raise CheckpointError(
                    f"{path} must be a .safetensors file or a model folder; other formats, such as "
                    "PyTorch's .bin, are first saved with safe_serialization=True"
                )
            source = cls(path.parent, {path.name: read_tensors(path)}, None, None, ())
        elif path.is_dir():
            source = cls._open_folder(path)
        else:
            raise CheckpointError(f"{path} does not exist")
        source._refuse_quantized(path)
        return source

    @classmethod
    def _open_folder(cls, path: Path) -> Source:
        names = sorted(p.name for p in path.glob("*.safetensors"))
        if not names:
            raise CheckpointError(f"{path} has no .safetensors file")
        config = read_json(path / "config.json")
        files = {name: read_tensors(path / name) for name in names}
        indices = sorted(p.name for p in path.glob(f"*{INDEX_SUFFIX}"))
        if len(indices) > 1:
            raise CheckpointError(f"{path} has more than one index: {', '.join(indices)}")
        if indices:
            _match_index(path / indices[0], files)
        elif len(names) > 1:
            raise CheckpointError(
                f"{path} has {len(names)} .safetensors files and no *{INDEX_SUFFIX}: which belong "
                "together is not known"
            )
        if (path / QUANTIZED_MARK).exists():
            raise CheckpointError(
                f"{path} is quantized already: it has {QUANTIZED_MARK}; "
                "convert the original in bfloat16, float16 or float32"
            )
        written = {*names, *indices, "config.json"}
        others = sorted(
            p.relative_to(path).as_posix()
            for p in path.rglob("*")
            if _is_file(p)
            and p.relative_to(path).as_posix() not in written
            # Weights in another format would be a second copy of the model, and not a quantized one.
            and p.suffix not in (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ot")
            and not any(part.startswith(".") for part in p.relative_to(path).parts)
        )
        return cls(path, files, config, indices[0] if indices else None, tuple(others))

    def _refuse_quantized(self, path: Path) -> None:
        for key in ("quantization_config", "compression_config"):
            method = (self.config or {}).get(key)
            if method:
                name = method.get("quant_method", "?") if isinstance(method, dict) else method
                raise CheckpointError(
                    f"{path} is quantized already ({key} in config.json names {name!r}); "
                    "convert the original in bfloat16, float16 or float32"
                )

    def fingerprint(self) -> dict[str, list[int]]:
        """Size and modification time, in ns, of every file that is read."""
        found = {}
        names = [*self.files, *self.others]
        if self.config is not None:
            names += ["config.json", *([self.index] if self.index else [])]
        for name in names:
            status = (self.root / name).stat()
            found[name] = [status.st_size, status.st_mtime_ns]
        return found


def _is_file(path: Path) -> bool:
    if path.is_symlink() and not path.exists():
        raise CheckpointError(f"{path} is a link to {path.readlink()}, which does not exist")
    return path.is_file()


def read_json(path: Path) -> dict[str, Any]:
    """A file that holds a JSON object."""
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; a model folder has one") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def _match_index(path: Path, files: dict[str, dict[str, TensorInfo]]) -> None:
    """Compare an index with the files; files that it does not name are left out."""
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{path} has no weight_map")
    for name, file in weight_map.items():
        if not isinstance(file, str) or file not in files:
            raise CheckpointError(f"{path} names the file {file!r}, which is missing")
        if name not in files[file]:
            raise CheckpointError(f"{path} places {name!r} in {file!r}, which does not contain it")
    for file in set(files) - set(weight_map.values()):
        del files[file]
    for file, tensors in files.items():
        extra = sorted(set(tensors) - set(weight_map))
        if extra:
            raise CheckpointError(f"{file} contains {extra[0]!r}, which {path} does not name")
