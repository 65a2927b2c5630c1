"""The C entries of the native CPU library on tensors whose memory ends at pages that nobody may touch."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from mxfp8_ops import formats, native
from mxfp8_ops.testing import assert_same_bytes

ISAS = ("avx512", "avx2", "portable")
ELEMENTS = tuple(formats.ELEMENT_FORMATS)
LAYOUTS = tuple(formats.SCALE_LAYOUTS)
PAGE = mmap.PAGESIZE
SLACK = 0xA5
"""Byte of the memory between an object and the other end of its pages."""


_other: ctypes.CDLL | None = None


def use_library(path: str) -> None:
    """Take the C entries of another build of csrc/cpu."""
    global _other
    _other = ctypes.CDLL(path)


def library() -> ctypes.CDLL:
    lib = native.library("cpu") if _other is None else _other
    lib.mxfp8_cpu_isa.restype = ctypes.c_char_p
    for name in ("quantize", "quantize_both", "dequantize", "swizzle", "unswizzle"):
        getattr(lib, f"mxfp8_cpu_{name}_raw").restype = None
    return lib


def current_isa() -> str:
    return library().mxfp8_cpu_isa().decode()


def set_isa(name: str) -> bool:
    return bool(library().mxfp8_cpu_set_isa(name.encode()))


@contextmanager
def using_isa(name: str) -> Iterator[None]:
    before = current_isa()
    assert set_isa(name)
    try:
        yield
    finally:
        set_isa(before)


def available_isas() -> tuple[str, ...]:
    """Those that this processor runs."""
    before = current_isa()
    found = tuple(name for name in ISAS if set_isa(name))
    set_isa(before)
    return found


def pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


class Guarded:
    """``size`` bytes that end at a page without access, or that begin right behind one.

    A byte read or written beyond that end kills the process; bytes between the object and its other
    end are ``SLACK``, which ``check_slack`` looks at.
    """

    def __init__(self, size: int, at_end: bool, fill: int = 0xFF) -> None:
        length = pages(max(size, 1))
        self._map = mmap.mmap(-1, length + 2 * PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for guard in (base, base + PAGE + length):
            if protect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect failed")
        self._size = size
        self._start = length - size if at_end else 0
        self.address = base + PAGE + self._start
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)[PAGE : PAGE + length]
        self._bytes.fill_(SLACK)
        self.bytes.fill_(fill)

    @property
    def bytes(self) -> torch.Tensor:
        return self._bytes[self._start : self._start + self._size]

    def check_slack(self) -> None:
        outside = torch.cat([self._bytes[: self._start], self._bytes[self._start + self._size :]])
        assert (outside == SLACK).all(), "bytes outside the output were written"


def extent(x: torch.Tensor) -> int:
    """Elements from the first to the last that a strided matrix has, both included."""
    return 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def guarded_copy(x: torch.Tensor, at_end: bool) -> Guarded:
    """The memory of ``x``, strides and all, between guard pages; elements between are NaN."""
    size = extent(x)
    guarded = Guarded(size * x.element_size(), at_end)
    torch.as_strided(guarded.bytes.view(x.dtype), x.shape, x.stride()).copy_(x)
    return guarded


def integers(*values: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(v) for v in values]


def pointers(*buffers: Guarded) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(b.address) for b in buffers]


def input_arguments(x: torch.Tensor, dtype: torch.dtype, mode: str) -> list[object]:
    """Of the matrix ``x`` behind a pointer: sizes, strides, and the enums of mxfp8.h."""
    return [
        *integers(*x.shape, *x.stride()),
        formats.INPUT_DTYPES.index(x.dtype),
        ELEMENTS.index(dtype),
        formats.SCALING_MODES.index(mode),
    ]


def call_between_guards(
    function: Callable[..., object],
    inputs: Sequence[torch.Tensor],
    arguments: Sequence[object],
    expected: Sequence[torch.Tensor],
    context: str,
) -> int:
    """Call twice, memory once ending and once beginning at guard pages; the number of calls.

    Outputs are filled with 0xFF and with 0x00 before: a byte that is not written shows in one of them.
    """
    for at_end, fill in ((True, 0xFF), (False, 0x00)):
        memory = [guarded_copy(x, at_end) for x in inputs]
        outputs = [Guarded(t.numel() * t.element_size(), at_end, fill) for t in expected]
        error = function(*pointers(*memory), *arguments, *pointers(*outputs))
        assert not error, f"{context}: error {error}"
        for output, wanted in zip(outputs, expected, strict=True):
            output.check_slack()
            got = output.bytes.view(wanted.dtype).view(wanted.shape)
            assert_same_bytes(got, wanted, f"{context} {at_end=} {fill=}")
    return 2
