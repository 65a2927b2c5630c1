"""Loading of the compiled libraries in ``mxfp8_ops/_lib``. A load error is kept, never raised."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

from ._copies import from_first_copy

_DIRECTORY = from_first_copy("libraries", Path(__file__).parent / "_lib")


@functools.cache
def load_error(name: str) -> str | None:
    """Load ``libmxfp8_<name>.so`` once: None, or why its kernels are not there.

    Loading registers the library's kernels for the schemas of ``ops.py``; it touches no device.
    """
    path = library_path(name)
    if not path.exists():
        return (
            f"the native {name} library was not built with this installation "
            f"(no {path.name}); docs/troubleshooting.md says how to build it"
        )
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        return f"the native {name} library failed to load: {error}"
    return None


def library_path(name: str) -> Path:
    """Where the build puts the library ``name``."""
    return _DIRECTORY / f"libmxfp8_{name}.so"


@functools.cache
def library(name: str) -> ctypes.CDLL:
    """The loaded library, for its C functions. Call only where ``load_error`` is None."""
    return ctypes.CDLL(str(library_path(name)))
