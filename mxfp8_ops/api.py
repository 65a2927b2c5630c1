"""The Python API: the registered ops with documented arguments and a choice of backend."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import dispatch, formats, platform
from .ops import OPERATIONS


def _op(operation: str, backend: str | None) -> torch._ops.OpOverload:
    if backend is None:
        return OPERATIONS[operation].op()
    dispatch.backend_named(backend)
    if backend not in OPERATIONS[operation].backends:
        valid = ", ".join(repr(name) for name in OPERATIONS[operation].backends)
        raise ValueError(f"backend of {operation} must be one of {valid}, got {backend!r}")
    return OPERATIONS[operation].op(backend)


def quantize(
    x: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    alignment: int | None = None,
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize to MXFP8 along the last dimension: blocks of 32 elements share one E8M0 scale.

    Args:
        x: ``[*batch, M, K]`` or ``[K]``, bfloat16, float16 or float32, any strides and offset.
        dtype: ``torch.float8_e4m3fn`` (None) or ``torch.float8_e5m2``.
        scaling_mode: how the scale follows from the block's largest \\|x\\|: ``"rceil"``, ``"floor"``,
            ``"ceil"`` or ``"even"``; docs/numerics.md has the rules and their sources.
        scale_layout: ``"linear"``, ``"swizzled_32_4_4"`` or ``"swizzled_8x4"``; docs/layouts.md.
        alignment: None needs K to be a multiple of 32; a multiple of 32 pads K with zeros up to its
            next multiple, ``Kp``.
        backend: a name from ``backends()``; None chooses by device. A named one never falls back.

    Returns:
        ``(data, scale)``, new and contiguous, on x's device, without gradient. ``data`` is
        ``[*batch, M, Kp]`` of ``dtype``; ``scale`` is ``torch.float8_e8m0fnu``, ``[*batch, M, Kp / 32]``
        in the linear layout and padded to whole tiles in a swizzled one.

    Raises:
        ValueError: an argument is not one of the above; the text names the value and the allowed ones.
        BackendUnavailableError: the named backend cannot serve this call.
    """
    return _op("quantize", backend)(
        x,
        dtype=dtype,
        scaling_mode=scaling_mode,
        scale_layout=scale_layout,
        alignment=alignment,
    )


def quantize_columnwise(
    x: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    alignment: int | None = None,
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize along the rows: the result of ``quantize(x.mT.contiguous(), ...)`` from one read of x.

    Args:
        x: ``[*batch, M, K]``; ``alignment`` concerns M. The other arguments are those of ``quantize``.

    Returns:
        ``(data, scale)`` with ``data`` of shape ``[*batch, K, Mp]``.

    Raises:
        ValueError: a bad argument.
        BackendUnavailableError: the named backend cannot serve this call.
    """
    return _op("quantize_columnwise", backend)(
        x,
        dtype=dtype,
        scaling_mode=scaling_mode,
        scale_layout=scale_layout,
        alignment=alignment,
    )


def quantize_both(
    x: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    scale_layout_t: str | None = None,
    alignment: int | None = None,
    backend: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """``quantize`` and ``quantize_columnwise`` from one read of x, as training needs them.

    Args:
        x: ``[*batch, M, K]``; ``alignment`` concerns both M and K.
        scale_layout_t: layout of the columnwise scale; None means ``scale_layout``.

    Returns:
        ``(data, scale, data_t, scale_t)``.

    Raises:
        ValueError: a bad argument.
        BackendUnavailableError: the named backend cannot serve this call.
    """
    return _op("quantize_both", backend)(
        x,
        dtype=dtype,
        scaling_mode=scaling_mode,
        scale_layout=scale_layout,
        scale_layout_t=scale_layout_t,
        alignment=alignment,
    )


def dequantize(
    data: torch.Tensor,
    scale: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scale_layout: str = "linear",
    backend: str | None = None,
) -> torch.Tensor:
    """Turn MXFP8 back into ordinary numbers: ``fp32(data) * 2**(scale - 127)``, rounded to ``dtype``.

    Args:
        data: ``[*batch, M, K]`` or ``[K]``, ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``.
        scale: ``torch.float8_e8m0fnu``, of the shape that ``quantize`` returns for ``scale_layout``.
        dtype: ``torch.bfloat16`` (None), ``torch.float16`` or ``torch.float32``.
        scale_layout: layout of ``scale``.
        backend: a name from ``backends()``; None chooses by device.

    Returns:
        A new contiguous tensor of data's shape; scale byte 255 gives NaN.

    Raises:
        ValueError: a bad argument, or a scale whose shape does not belong to data and layout.
        BackendUnavailableError: the named backend cannot serve this call.
    """
    return _op("dequantize", backend)(data, scale, dtype=dtype, scale_layout=scale_layout)


def swizzle_scale(scale: torch.Tensor, scale_layout: str) -> torch.Tensor:
    """Linear scales ``[*batch, rows, columns]`` in the order of ``scale_layout``; padding bytes are 0.

    Args:
        scale: ``torch.float8_e8m0fnu``; ``[columns]`` counts as one row.
        scale_layout: ``"linear"``, ``"swizzled_32_4_4"`` or ``"swizzled_8x4"``.

    Returns:
        A new contiguous tensor, padded to whole tiles.

    Raises:
        ValueError: a bad argument.
    """
    return OPERATIONS["swizzle_scale"].op()(scale, scale_layout)


def unswizzle_scale(
    scale: torch.Tensor, rows: int, columns: int, scale_layout: str
) -> torch.Tensor:
    """The inverse of ``swizzle_scale``: linear scales ``[*batch, rows, columns]``.

    Args:
        scale: ``torch.float8_e8m0fnu``, as ``quantize`` or ``swizzle_scale`` returns it.
        rows: rows without padding, M of the quantized tensor.
        columns: columns without padding, K / 32 of the quantized tensor.
        scale_layout: layout of ``scale``.

    Returns:
        A new contiguous tensor.

    Raises:
        ValueError: a bad argument, or a shape that does not belong to rows, columns and layout.
    """
    return OPERATIONS["unswizzle_scale"].op()(scale, rows, columns, scale_layout)


@dataclass(frozen=True)
class BackendStatus:
    """One row of ``backends()``: ``reason`` says why it is not available, None where it is."""

    device: torch.device
    name: str
    reason: str | None
    chosen: bool
    deviation: str | None


class BackendTable(tuple[BackendStatus, ...]):
    """The rows of ``backends()``; printing it gives a table."""

    def __str__(self) -> str:
        lines = []
        for row in self:
            state = row.reason or ("available, chosen for quantize" if row.chosen else "available")
            lines.append(f"{row.device!s:<8} {row.name:<9} {state}")
        return "\n".join(lines)

    __repr__ = __str__


def backends(device: torch.device | str | None = None) -> BackendTable:
    """Every backend for ``device``, or for all devices of this machine: available, or why not.

    Backends come in the order of preference, those that do not belong to the device last. None is chosen
    where MXFP8_OPS_BACKEND names what cannot serve; the call then says why.
    """
    rows = []
    for target in platform.devices() if device is None else [torch.device(device)]:
        order = dispatch.preference(target)
        serving = [backend.name for backend in dispatch.served_by("quantize", target)[0]]
        for name in sorted(dispatch.BACKENDS, key=lambda n: order.index(n) if n in order else 99):
            backend = dispatch.BACKENDS[name]
            reason = dispatch.unavailable_reason(backend, target)
            rows.append(BackendStatus(target, name, reason, name in serving[:1], backend.deviation))
    return BackendTable(rows)


def warmup(device: torch.device | str | None = None) -> None:
    """Build, load and compile what calls on ``device`` will need, so that the first one need not.

    Call it before capturing CUDA graphs. It runs ``quantize`` and ``dequantize`` once for every layout
    and three sizes, in bfloat16, e4m3 and rceil; other combinations are warmed by calling them.

    Args:
        device: None means the current accelerator, or the CPU where there is none.
    """
    if device is None:
        device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    for rows in (1, 256, 4096):
        x = torch.zeros(rows, 4096, dtype=torch.bfloat16, device=device)
        for layout in formats.SCALE_LAYOUTS:
            dequantize(*quantize(x, scale_layout=layout), scale_layout=layout)
