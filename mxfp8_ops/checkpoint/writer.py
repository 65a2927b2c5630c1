"""A safetensors file written piece by piece, which takes its name only when it is whole.

The safetensors library saves tensors that are all in memory; here the header is computed from the shapes,
and the library reads the result. The container: 8 bytes of header length, a JSON header padded with spaces
to a multiple of 8, then the tensors without gaps.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import torch

from .errors import CheckpointError
from .source import TensorInfo

_ITEM_SIZES = {
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "U8", "I8", "BOOL"), 1),
}


def item_size(info: TensorInfo) -> int:
    """Bytes of an element; CheckpointError for a type that is not known."""
    if info.dtype not in _ITEM_SIZES:
        raise CheckpointError(
            f"{info.name} has type {info.dtype}; types that can be copied are {', '.join(_ITEM_SIZES)}"
        )
    return _ITEM_SIZES[info.dtype]


def describe(error: OSError) -> str:
    """An error of the file system in words for the user."""
    if error.errno == errno.ENOSPC:
        return (
            "the disk is full; what was finished is kept, and the same command goes on from there"
        )
    return error.strerror or str(error)


def replace_file(path: Path, content: bytes) -> None:
    """Write a small file, all of it or nothing."""
    partial = partial_path(path)
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise CheckpointError(f"{path} cannot be written: {describe(error)}") from None


def partial_path(path: Path) -> Path:
    """Where ``path`` is written until it is whole."""
    return path.with_name(f".{path.name}.partial")


class Writer:
    """Context manager: ``path`` appears on leaving it without an exception, and not otherwise."""

    def __init__(
        self, path: Path, tensors: Sequence[TensorInfo], metadata: Mapping[str, str]
    ) -> None:
        self._path, self._partial = path, partial_path(path)
        # Larger elements first: every tensor then is aligned to its element.
        ordered = sorted(tensors, key=lambda t: (-item_size(t), t.name))
        header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
        self._tensors: dict[str, tuple[TensorInfo, int]] = {}
        place = 0
        for info in ordered:
            end = place + info.numel * item_size(info)
            header[info.name] = {
                "dtype": info.dtype,
                "shape": list(info.shape),
                "data_offsets": [place, end],
            }
            self._tensors[info.name] = (info, place)
            place = end
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        self._header = len(text).to_bytes(8, "little") + text
        self._size = len(self._header) + place

    def __enter__(self) -> Writer:
        try:
            descriptor = os.open(self._partial, os.O_RDWR | os.O_CREAT, 0o666)
            self._file = os.fdopen(descriptor, "r+b")
        except OSError as error:
            raise self._failure(error) from None
        self._lock()
        try:
            self._file.truncate(0)
            self._file.truncate(self._size)
            self._file.write(self._header)
            self._file.flush()
        except OSError as error:
            self._give_up()
            raise self._failure(error) from None
        return self

    def _failure(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self._path} cannot be written: {describe(error)}")

    def _give_up(self) -> None:
        self._partial.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # what is still in the buffer has no place to go
            self._file.close()

    def _lock(self) -> None:
        """Refuse to write into a file that another process is writing."""
        try:
            import fcntl
        except ImportError:  # not on Windows
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_ours = False
        except OSError:  # a file system without locks
            return
        else:
            is_ours = self._is_still_there()
        if not is_ours:
            self._file.close()
            raise CheckpointError(f"another process is writing {self._path}")

    def _is_still_there(self) -> bool:
        """Whether no other process has finished, and so renamed, the file between open and lock."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self._partial.stat())
        except FileNotFoundError:
            return False

    def write(self, name: str, first_row: int, rows: torch.Tensor) -> None:
        """Write consecutive rows of the tensor ``name``; a scalar is written whole."""
        info, place = self._tensors[name]
        row_bytes = item_size(info) * (info.numel // info.shape[0] if info.shape else 1)
        content = rows.contiguous().reshape(-1).view(torch.uint8).numpy()
        try:
            self._file.seek(len(self._header) + place + first_row * row_bytes)
            self._file.write(content.data)
        except OSError as error:
            raise self._failure(error) from None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._give_up()
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._partial.replace(self._path)
            self._file.close()
        except OSError as problem:
            self._give_up()
            raise self._failure(problem) from None
