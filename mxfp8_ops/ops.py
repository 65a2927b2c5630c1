"""Every schema and every fake of ``torch.ops.mxfp8``. Imports torch only.

An operation exists as a dispatcher op (``mxfp8::quantize``), which chooses a backend, and as one op for
each backend that can compute it (``mxfp8::quantize_cpu``). All of them have one schema, one check and
one fake, and exist after import on every machine; kernels are registered by the backend files and
by ``dispatch.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import formats
from ._copies import NAMESPACE, from_first_copy
from ._version import __version__
from ._vmap import vmap_rule
from .formats import BLOCK_SIZE, SCALE_DTYPE


@dataclass(frozen=True)
class Operation:
    """One operation: its schema, the backends that have an op for it, its check and its fake."""

    name: str
    arguments: str
    returns: str
    backends: tuple[str, ...]
    check: Callable[..., None]
    fake: Callable[..., Any]

    def op(self, backend: str | None = None) -> torch._ops.OpOverload:
        """The registered op of ``backend``, or the dispatcher op."""
        return getattr(getattr(torch.ops, NAMESPACE), self.op_name(backend)).default

    def op_name(self, backend: str | None = None) -> str:
        """``"quantize"`` or ``"quantize_cpu"``."""
        return self.name if backend is None else f"{self.name}_{backend}"


def allocate_quantized(
    input: torch.Tensor,
    shape: Sequence[Any],
    dtype: torch.dtype | None,
    scale_layout: str,
    alignment: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """New uninitialised data and scale, on input's device, for an input of ``shape``."""
    device, element = input.device, formats.element_format(dtype)
    try:
        data, scale = _geometry(tuple(shape), scale_layout, alignment)
    except TypeError:  # SymInts have no hash
        shapes = formats.quantized_shapes(shape, scale_layout, alignment)
        return (
            torch.empty(shapes[0], dtype=element.dtype, device=device),
            torch.empty(shapes[1], dtype=SCALE_DTYPE, device=device),
        )
    return (
        torch.empty_strided(*data, dtype=element.dtype, device=device),
        torch.empty_strided(*scale, dtype=SCALE_DTYPE, device=device),
    )


@functools.lru_cache(4096)
def _geometry(
    shape: tuple[int, ...], scale_layout: str, alignment: int | None
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Shapes and strides of data and scale; kept, as this is a third of an eager call's Python."""
    shapes = formats.quantized_shapes(shape, scale_layout, alignment)
    return [(s, torch.empty(s, device="meta").stride()) for s in shapes]


def _transposed_shape(input: torch.Tensor) -> tuple[Any, ...]:
    return (*input.shape[:-2], input.shape[-1], input.shape[-2])


def quantize_fake(
    input: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    alignment: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Check a ``quantize`` call and allocate its outputs."""
    formats.check_quantize(
        input,
        dtype=dtype,
        scaling_mode=scaling_mode,
        scale_layout=scale_layout,
        alignment=alignment,
    )
    return allocate_quantized(input, input.shape, dtype, scale_layout, alignment)


def quantize_columnwise_fake(
    input: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    alignment: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Check a ``quantize_columnwise`` call and allocate its outputs."""
    formats.check_quantize_columnwise(
        input,
        dtype=dtype,
        scaling_mode=scaling_mode,
        scale_layout=scale_layout,
        alignment=alignment,
    )
    return allocate_quantized(input, _transposed_shape(input), dtype, scale_layout, alignment)


def quantize_both_fake(
    input: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    scale_layout_t: str | None = None,
    alignment: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Check a ``quantize_both`` call and allocate its outputs."""
    formats.check_quantize_both(
        input,
        dtype=dtype,
        scaling_mode=scaling_mode,
        scale_layout=scale_layout,
        scale_layout_t=scale_layout_t,
        alignment=alignment,
    )
    layout_t = scale_layout if scale_layout_t is None else scale_layout_t
    return (
        *allocate_quantized(input, input.shape, dtype, scale_layout, alignment),
        *allocate_quantized(input, _transposed_shape(input), dtype, layout_t, alignment),
    )


def dequantize_fake(
    data: torch.Tensor,
    scale: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scale_layout: str = "linear",
) -> torch.Tensor:
    """Check a ``dequantize`` call and allocate its output."""
    formats.check_dequantize(data, scale, dtype=dtype, scale_layout=scale_layout)
    output_dtype = torch.bfloat16 if dtype is None else dtype
    return torch.empty(data.shape, dtype=output_dtype, device=data.device)


def swizzle_scale_fake(scale: torch.Tensor, scale_layout: str) -> torch.Tensor:
    """Check a ``swizzle_scale`` call and allocate its output."""
    formats.check_swizzle_scale(scale, scale_layout)
    unquantized_shape = (*scale.shape[:-1], scale.shape[-1] * BLOCK_SIZE)
    shape = formats.quantized_shapes(unquantized_shape, scale_layout, None)[1]
    return torch.empty(shape, dtype=SCALE_DTYPE, device=scale.device)


def unswizzle_scale_fake(
    scale: torch.Tensor, rows: int, columns: int, scale_layout: str
) -> torch.Tensor:
    """Check an ``unswizzle_scale`` call and allocate its output."""
    formats.check_unswizzle_scale(scale, rows, columns, scale_layout)
    return torch.empty((*scale.shape[:-2], rows, columns), dtype=SCALE_DTYPE, device=scale.device)


_QUANTIZE_OPTIONS = 'ScalarType? dtype=None, str scaling_mode="rceil", str scale_layout="linear"'

OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation(
            "quantize",
            f"(Tensor input, *, {_QUANTIZE_OPTIONS}, int? alignment=None)",
            "(Tensor data, Tensor scale)",
            ("torch", "cpu", "cuda", "cute_dsl", "triton", "xpu", "xpu_vllm"),
            formats.check_quantize,
            quantize_fake,
        ),
        Operation(
            "quantize_columnwise",
            f"(Tensor input, *, {_QUANTIZE_OPTIONS}, int? alignment=None)",
            "(Tensor data, Tensor scale)",
            ("torch", "cpu", "cuda", "triton"),
            formats.check_quantize_columnwise,
            quantize_columnwise_fake,
        ),
        Operation(
            "quantize_both",
            f"(Tensor input, *, {_QUANTIZE_OPTIONS}, str? scale_layout_t=None, int? alignment=None)",
            "(Tensor data, Tensor scale, Tensor data_t, Tensor scale_t)",
            ("torch", "cpu", "cuda", "triton"),
            formats.check_quantize_both,
            quantize_both_fake,
        ),
        Operation(
            "dequantize",
            '(Tensor data, Tensor scale, *, ScalarType? dtype=None, str scale_layout="linear")',
            "Tensor",
            ("torch", "cpu", "cuda", "triton", "xpu"),
            formats.check_dequantize,
            dequantize_fake,
        ),
        Operation(
            "swizzle_scale",
            "(Tensor scale, str scale_layout)",
            "Tensor",
            ("torch", "cpu"),
            formats.check_swizzle_scale,
            swizzle_scale_fake,
        ),
        Operation(
            "unswizzle_scale",
            "(Tensor scale, SymInt rows, SymInt columns, str scale_layout)",
            "Tensor",
            ("torch", "cpu"),
            formats.check_unswizzle_scale,
            unswizzle_scale_fake,
        ),
    )
}

# None in a second copy of the package, which registers nothing.
_LIBRARY: torch.library.Library | None = None


def register_kernel(name: str, key: str, kernel: Callable[..., Any]) -> None:
    """Register ``kernel`` for ``mxfp8::name`` on a dispatch key, unless another copy owns the ops."""
    if _LIBRARY is not None:
        _LIBRARY.impl(name, kernel, key)


def _refusal_kernel(operation: Operation) -> Callable[..., str]:
    """Kernel of ``mxfp8::_refuse_<operation>``: the sentence that refuses a call, empty if none does.

    Native kernels only decide whether they were called properly; the words are those of the check.
    """

    def refuse(*args: Any, **kwargs: Any) -> str:
        try:
            operation.check(*args, **kwargs)
        except ValueError as error:
            return str(error)
        return ""

    return refuse


def _require_same_ops(version: str) -> None:
    """ImportError where the first copy in the process defined other ops than this one would."""
    for operation in OPERATIONS.values():
        for backend in (None, *operation.backends):
            name = operation.op_name(backend)
            packet = getattr(getattr(torch.ops, NAMESPACE), name, None)
            wanted = torch._C.parse_schema(
                f"{NAMESPACE}::{name}{operation.arguments} -> {operation.returns}"
            )
            if packet is None or str(packet.default._schema) != str(wanted):
                raise ImportError(
                    f"two versions of mxfp8_ops in one process: {NAMESPACE}::{name} of {version}, which "
                    f"was imported first, is not that of {__version__}; import one of them only"
                )


def _define_all() -> None:
    global _LIBRARY
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    if from_first_copy("library", library) is not library:
        _require_same_ops(from_first_copy("version", __version__))
        return
    for operation in OPERATIONS.values():
        for backend in (None, *operation.backends):
            name = operation.op_name(backend)
            library.define(
                f"{name}{operation.arguments} -> {operation.returns}",
                tags=(torch.Tag.pt2_compliant_tag,),
            )
            torch.library.register_fake(f"{NAMESPACE}::{name}", operation.fake, lib=library)
            torch.library.register_vmap(
                f"{NAMESPACE}::{name}",
                vmap_rule(operation.check, operation.op(backend)),
                lib=library,
            )
            # Codes and scales carry no gradient: outputs are detached, at no cost per call.
            library.impl(name, torch.library.fallthrough_kernel, "Autograd")
        refusal = f"_refuse_{operation.name}"
        library.define(f"{refusal}{operation.arguments} -> str")
        library.impl(refusal, _refusal_kernel(operation), "CompositeExplicitAutograd")
    from_first_copy("version", __version__)
    _LIBRARY = library


_define_all()
