"""Triton kernels for NVIDIA (SM80 and newer), AMD and Intel GPUs: launchers and launch path.

A plain Triton launch costs more host time than small shapes take on the device, so everything that
depends on shapes and types alone is worked out once and kept as a ``_Plan``: an eager call is a
dictionary look-up, the allocation of the outputs and one call of a compiled kernel.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from .. import formats, ops, platform
from ..errors import BackendUnavailableError
from ..formats import BLOCK_SIZE
from . import Backend


class Config(NamedTuple):
    """How a kernel is launched; every field selects a compiled variant.

    Attributes:
        rows: rows of a tile; 1 for the flat kernels.
        columns: columns of a tile: blocks, or elements for the columnwise kernel.
        warps: warps per program.
        vector: codes that a thread stores (or loads, in dequantize) at once.
        evict: whether the input is marked as not worth keeping in L2.
        pdl: programmatic dependent launch (NVIDIA, SM90 and newer).
        group: tiles that run down before the next column of tiles, in the columnwise kernel.
    """

    rows: int
    columns: int
    warps: int
    vector: int = 16
    evict: bool = False
    pdl: bool = False
    group: int = 4


# (largest number of blocks, configuration), by kernel: the best of benchmarks/tune_triton.py on an H200
# (torch 2.11, Triton 3.6, bfloat16, rceil, e4m3) for 1 x 4096, 128 x 7168, 512 x 7168 and 8192 x 8192.
_LARGE = 1 << 62
CONFIGS: dict[str, tuple[tuple[int, Config], ...]] = {
    "flat": (
        (1 << 12, Config(1, 32, 1, pdl=True)),
        (1 << 16, Config(1, 32, 4, pdl=True)),
        (1 << 19, Config(1, 64, 2, vector=8, pdl=True)),
        (_LARGE, Config(1, 256, 4, vector=8, pdl=True)),
    ),
    "tiles": (
        (1 << 16, Config(8, 4, 2, pdl=True)),
        (1 << 19, Config(8, 4, 1, pdl=True)),
        (_LARGE, Config(8, 8, 2, pdl=True)),
    ),
    "columns": (
        (1 << 15, Config(64, 64, 2, vector=8, pdl=True)),
        (_LARGE, Config(256, 64, 8, vector=8, pdl=True, group=1)),
    ),
    "dequantize_flat": (
        (1 << 12, Config(1, 32, 4, pdl=True)),
        (1 << 18, Config(1, 32, 2, pdl=True)),
        (_LARGE, Config(1, 128, 4, pdl=True)),
    ),
    "dequantize_tiles": (
        (1 << 18, Config(8, 8, 2, pdl=True)),
        (_LARGE, Config(8, 8, 2, vector=8, pdl=True)),
    ),
}

_KERNEL_OF = {
    "flat": "quantize_flat_kernel",
    "tiles": "quantize_tiles_kernel",
    "columns": "quantize_columns_kernel",
    "dequantize_flat": "dequantize_flat_kernel",
    "dequantize_tiles": "dequantize_tiles_kernel",
}

# Shapes seen. Serving engines use few; a workload with more starts over instead of growing.
_MAX_PLANS = 4096

_lock = threading.RLock()
_plans: dict[tuple[Any, ...], _Plan] = {}
_variants: dict[tuple[Any, ...], Callable[..., Any]] = {}


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    # Another thread may hold the lock at the fork, and would never release it in the child.
    os.register_at_fork(after_in_child=_renew_lock)


class _Plan(NamedTuple):
    """A call worked out: the compiled kernel for this grid, and its arguments after the pointers."""

    run: Callable[..., Any]
    arguments: tuple[Any, ...]
    takes_addresses: bool
    copy_input: bool


@functools.cache
def _kernels() -> Any:
    from . import triton_kernels

    return triton_kernels


def is_interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _unavailable_reason(device: torch.device) -> str | None:
    if device.type == "cpu" and not is_interpreted():
        return (
            "it runs on CUDA, ROCm and XPU tensors, and on cpu ones only under TRITON_INTERPRET=1"
        )
    if device.type not in ("cuda", "xpu", "cpu"):
        return f"it runs on CUDA, ROCm and XPU tensors, got a tensor on {device}"
    try:
        import triton

        _kernels()
    except Exception as error:  # a broken installation may raise anything
        return f"triton cannot be imported: {type(error).__name__}: {error}"
    if device.type == "cpu":
        return None
    if device.type == "cuda" and not platform.is_rocm():
        capability = platform.compute_capability(platform.device_index(device))
        if capability < (8, 0):
            return (
                f"Triton needs compute capability 8.0 or newer, "
                f"{device} has {capability[0]}.{capability[1]}"
            )
    try:
        triton.runtime.driver.active.get_current_target()
    except Exception as error:  # no compiled driver for this machine: Triton's own words say why
        return f"triton {triton.__version__} has no driver for {device}: {error}"
    return None


@functools.cache
def _cast(device_type: str, index: int) -> str:
    """Which conversion to FP8 is right and fast: ``native``, ``software`` or ``fnuz``.

    Triton's own conversion rounds twice on sm_89 before Triton 3.9, does not exist (e4m3) or rounds
    halves up (e5m2) on sm_80 and sm_86, and saturates e4m3 at 256 in triton-xpu 3.3.
    """
    if device_type != "cuda":
        return "software"
    if platform.is_rocm():
        arch = platform.gcn_arch(index)
        if arch in ("gfx950", "gfx1250"):
            return "native"
        if arch.startswith("gfx94") and os.environ.get("MXFP8_OPS_TRITON_FNUZ", "1") != "0":
            return "fnuz" if _fnuz_is_exact(index) else "software"
        return "software"
    capability = platform.compute_capability(index)
    if capability >= (9, 0):
        return "native"
    if capability == (8, 9):
        import triton

        release = tuple(int(part) for part in triton.__version__.split(".")[:2])
        return "native" if release >= (3, 9) else "software"
    return "software"


def _fnuz_is_exact(index: int) -> bool:
    """Whether gfx942's FNUZ conversion of half the value gives the software codes, for all of bf16."""
    patterns = torch.arange(1 << 16, dtype=torch.int32, device=f"cuda:{index}").to(torch.int16)
    x = patterns.view(torch.bfloat16).reshape(-1, BLOCK_SIZE)
    try:
        for element in formats.ELEMENT_FORMATS:
            for mode in ("rceil", "floor"):
                exact = _launch_flat(x, element, mode, "software")
                fnuz = _launch_flat(x, element, mode, "fnuz")
                for a, b in zip(exact, fnuz, strict=True):
                    if not torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
                        return False
    except BackendUnavailableError:
        return False
    return True


def _launch_flat(
    x: torch.Tensor, dtype: torch.dtype, scaling_mode: str, cast: str
) -> tuple[torch.Tensor, torch.Tensor]:
    plan = _plan_quantize(x, dtype, scaling_mode, "linear", None, cast)
    outputs = ops.allocate_quantized(x, x.shape, dtype, "linear", None)
    _run(plan, x, outputs)
    return outputs


def config_for(kernel: str, blocks: int, device: torch.device) -> Config:
    """The launch configuration of ``kernel`` for a tensor of so many blocks on ``device``."""
    config = next(config for largest, config in CONFIGS[kernel] if blocks <= largest)
    return config if _overlaps_launches(device) else config._replace(pdl=False)


def _overlaps_launches(device: torch.device) -> bool:
    """Whether the device has programmatic dependent launch."""
    if device.type != "cuda" or platform.is_rocm():
        return False
    return platform.compute_capability(platform.device_index(device)) >= (9, 0)


@functools.cache
def _device_count(device_type: str) -> int:
    return 1 if device_type == "cpu" else torch.accelerator.device_count()


def _guard(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Make ``device`` current: Triton launches on the current device and its current stream."""
    if _device_count(device.type) == 1:  # 1.7 us less than asking for the current device
        return _NO_GUARD
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        return torch.cuda.device(device)
    if device.type == "xpu" and device.index != torch.xpu.current_device():
        return torch.xpu.device(device)
    return _NO_GUARD


_NO_GUARD = contextlib.nullcontext()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` with a type that Triton's pointers can have."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16)
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _compile(
    kernel: str,
    pointers: Sequence[torch.Tensor],
    integers: tuple[int, ...],
    constants: dict[str, Any],
    config: Config,
) -> Any:
    """The compiled kernel; kept by everything that selects a variant."""
    device = pointers[0].device
    types = tuple((p.dtype, p.data_ptr() % 16 == 0) for p in pointers)
    key = (kernel, device, types, tuple(constants.values()), config.warps)
    compiled = _variants.get(key)
    if compiled is None:
        options: dict[str, Any] = {"num_warps": config.warps}
        if constants["PDL"]:
            options["launch_pdl"] = True
        try:
            compiled = getattr(_kernels(), kernel).warmup(
                *[_bits(p) for p in pointers], *integers, **constants, grid=(1,), **options
            )
            if hasattr(compiled, "result"):  # Triton's asynchronous compilation is switched on
                compiled = compiled.result()
        except Exception as error:
            if _is_capturing(device):
                raise RuntimeError(
                    f"{kernel} could not be compiled while a CUDA graph is being captured ({error}); "
                    f"call mxfp8_ops.warmup(), or this operation once with the same arguments, before"
                ) from error
            raise BackendUnavailableError(
                "triton", f"{kernel} failed to compile: {type(error).__name__}: {error}"
            ) from error
        _variants[key] = compiled
    return compiled


def _make_plan(
    kernel: str,
    config: Config,
    programs: int,
    pointers: Sequence[torch.Tensor],
    integers: tuple[int, ...],
    constants: dict[str, Any],
    copy_input: bool = False,
) -> _Plan:
    """Compile a variant on the current device and bind it to its grid and arguments."""
    device = pointers[0].device
    arguments = (*integers, *constants.values())
    if programs > 0x7FFFFFFF:
        raise BackendUnavailableError("triton", f"{programs} programs exceed a grid of 2**31 - 1")
    if device.type == "cpu":
        return _Plan(getattr(_kernels(), kernel)[(programs,)], arguments, False, copy_input)
    with _lock:
        compiled = _compile(kernel, pointers, integers, constants, config)
    # A compiled kernel takes every argument of the source, constants included. On CUDA and ROCm an
    # address may stand for a tensor, of whatever dtype.
    return _Plan(compiled[(programs, 1, 1)], arguments, device.type == "cuda", copy_input)


def _run(plan: _Plan, input: torch.Tensor, others: Iterable[torch.Tensor]) -> None:
    if plan.copy_input:
        input = input.contiguous()
    if plan.takes_addresses:
        # The raw stream, as Triton itself would look it up with the current device: 1.5 us less.
        stream = torch._C._cuda_getCurrentRawStream(input.device.index)
        pointers = [t.data_ptr() for t in others]
        plan.run(input.data_ptr(), *pointers, *plan.arguments, stream=stream)
    else:
        plan.run(_bits(input), *[_bits(t) for t in others], *plan.arguments)


def _remember(key: tuple[Any, ...], plan: _Plan) -> _Plan:
    if len(_plans) >= _MAX_PLANS:
        _plans.clear()
    _plans[key] = plan
    return plan


def _strides(x: torch.Tensor) -> tuple[int, int, int, int] | None:
    """``(batch, rows, row stride, batch stride)``, or None where the kernel needs a copy of x.

    The last dimension must be dense, and the batch dimensions must step evenly.
    """
    shape, stride = x.shape, x.stride()
    if shape[-1] > 1 and stride[-1] != 1:
        return None
    if x.dim() == 1:
        return 1, 1, 0, 0
    rows, row_stride = shape[-2], stride[-2] if shape[-2] > 1 else 0
    batch, batch_stride = 1, 0
    for size, step in zip(reversed(shape[:-2]), reversed(stride[:-2]), strict=True):
        if size == 1:
            continue
        if batch == 1:
            batch_stride = step
        elif step != batch * batch_stride:
            return None
        batch *= size
    return batch, rows, row_stride, batch_stride


def _unit(x: torch.Tensor, *strides: int) -> int:
    """The largest number of elements, up to 16 bytes, that divides all strides."""
    unit = 16 // x.dtype.itemsize
    while any(stride % unit for stride in strides):
        unit //= 2
    return unit


def _column_unit(columns: int) -> int:
    unit = BLOCK_SIZE
    while columns % unit:
        unit //= 2
    return unit


def _constants(mode: str, dtype: torch.dtype | None, cast: str) -> dict[str, Any]:
    return {
        "MODE": _kernels().MODES[mode],
        "E5M2": dtype == torch.float8_e5m2,
        "CAST": _kernels().CASTS[cast],
    }


def _round_up(n: int, multiple: int) -> int:
    return (n + multiple - 1) // multiple * multiple


def _pow2_at_least(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _dense_plan_input(x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int, int, int], bool]:
    strides = _strides(x)
    if strides is not None:
        return x, strides, False
    x = x.contiguous()
    strides = _strides(x)
    if strides is None:
        raise AssertionError("a contiguous tensor has even strides")
    return x, strides, True


def _fit_tile(config: Config, columns: int, scale_layout: str) -> Config:
    """Keep the tile's number of blocks, but do not make it wider than the matrix."""
    layout = formats.SCALE_LAYOUTS[scale_layout]
    minimum = max(layout.tile_columns, 1)
    width = max(min(config.columns, _pow2_at_least(columns)), minimum)
    blocks = config.rows * config.columns
    smallest_rows = {"linear": 1, "swizzled_32_4_4": 4, "swizzled_8x4": 8}[scale_layout]
    rows = min(max(blocks // width, smallest_rows), 128)
    return config._replace(rows=rows, columns=width)


def _plan_quantize(
    x: torch.Tensor,
    dtype: torch.dtype | None,
    scaling_mode: str,
    scale_layout: str,
    alignment: int | None,
    cast: str,
    config: Config | None = None,
) -> _Plan:
    x, (batch, rows, row_stride, batch_stride), copied = _dense_plan_input(x)
    data_shape, _ = formats.quantized_shapes(x.shape, scale_layout, alignment)
    columns, data_columns = x.shape[-1], data_shape[-1] // BLOCK_SIZE
    outputs = ops.allocate_quantized(x, x.shape, dtype, scale_layout, alignment)
    blocks = batch * rows * data_columns
    constants = _constants(scaling_mode, dtype, cast)

    if scale_layout == "linear" and x.is_contiguous() and columns == data_shape[-1]:
        config = config or config_for("flat", blocks, x.device)
        constants |= {
            "BLOCKS": config.columns,
            "VECTOR": config.vector,
            "EVICT": config.evict,
            "PDL": config.pdl,
        }
        programs = -(-blocks // config.columns)
        kernel, integers = "quantize_flat_kernel", (blocks,)
        return _make_plan(kernel, config, programs, [x, *outputs], integers, constants, copied)

    config = _fit_tile(config or config_for("tiles", blocks, x.device), data_columns, scale_layout)
    stored = formats.scale_shape((), rows, data_columns, scale_layout)
    if scale_layout == "swizzled_32_4_4":
        row_tiles = stored[0] // config.rows
    else:
        row_tiles = -(-stored[0] // config.rows)
    column_tiles = -(-stored[1] // config.columns)
    unit, column_unit = _unit(x, row_stride, batch_stride), _column_unit(columns)
    integers = (
        rows,
        columns // column_unit,
        data_columns,
        *stored,
        row_tiles,
        column_tiles,
        row_stride // unit,
        batch_stride // unit,
    )
    constants |= {
        "LAYOUT": _kernels().LAYOUTS[scale_layout],
        "ROWS": config.rows,
        "COLUMNS": config.columns,
        "STRIDE_UNIT": unit,
        "COLUMN_UNIT": column_unit,
        "VECTOR": config.vector,
        "EVICT": config.evict,
        "PDL": config.pdl,
    }
    programs = batch * row_tiles * column_tiles
    kernel = "quantize_tiles_kernel"
    return _make_plan(kernel, config, programs, [x, *outputs], integers, constants, copied)


def _plan_columns(
    x: torch.Tensor,
    dtype: torch.dtype | None,
    scaling_mode: str,
    layouts: tuple[str, str],
    alignment: int | None,
    both: bool,
    cast: str,
    config: Config | None = None,
) -> _Plan:
    x, (batch, rows, row_stride, batch_stride), copied = _dense_plan_input(x)
    columns = x.shape[-1]
    step = BLOCK_SIZE if alignment is None else alignment
    data_columns = _round_up(columns, step) // BLOCK_SIZE if both else 0
    data_t_columns = _round_up(rows, step) // BLOCK_SIZE
    stored = formats.scale_shape((), rows, data_columns, layouts[0]) if both else (0, 0)
    stored_t = formats.scale_shape((), columns, data_t_columns, layouts[1])
    config = config or config_for("columns", batch * rows * columns // BLOCK_SIZE, x.device)
    row_tiles = -(-max(stored[0], stored_t[1] * BLOCK_SIZE) // config.rows)
    column_tiles = -(-max(stored_t[0], stored[1] * BLOCK_SIZE) // config.columns)
    unit, column_unit = _unit(x, row_stride, batch_stride), _column_unit(columns)
    integers = (
        rows,
        columns // column_unit,
        data_columns,
        *stored,
        data_t_columns,
        *stored_t,
        row_tiles,
        column_tiles,
        row_stride // unit,
        batch_stride // unit,
    )
    constants = {
        "BOTH": both,
        **_constants(scaling_mode, dtype, cast),
        "LAYOUT": _kernels().LAYOUTS[layouts[0]],
        "LAYOUT_T": _kernels().LAYOUTS[layouts[1]],
        "AXIS": _kernels().OCTET_AXIS,
        "OCTETS": config.rows // 8,
        "COLUMNS": config.columns,
        "GROUP": config.group,
        "STRIDE_UNIT": unit,
        "COLUMN_UNIT": column_unit,
        "VECTOR": config.vector,
        "EVICT": config.evict,
        "PDL": config.pdl,
    }
    transposed = (*x.shape[:-2], columns, rows)
    outputs_t = ops.allocate_quantized(x, transposed, dtype, layouts[1], alignment)
    programs = batch * row_tiles * column_tiles
    kernel = "quantize_columns_kernel"
    pointers = [x, *outputs_t, *outputs_t]
    return _make_plan(kernel, config, programs, pointers, integers, constants, copied)


def _plan_dequantize(
    data: torch.Tensor,
    scale: torch.Tensor,
    out: torch.Tensor,
    scale_layout: str,
    cast: str,
    config: Config | None = None,
) -> _Plan:
    columns = data.shape[-1] // BLOCK_SIZE
    rows = data.shape[-2] if data.dim() > 1 else 1
    blocks = data.numel() // BLOCK_SIZE
    batch = blocks // (rows * columns)
    constants: dict[str, Any] = {
        "E5M2": data.dtype == torch.float8_e5m2,
        "CAST": _kernels().CASTS["native" if cast == "native" else "software"],
    }
    pointers = [data, scale, out]
    if scale_layout == "linear":
        config = config or config_for("dequantize_flat", blocks, data.device)
        constants |= {
            "BLOCKS": config.columns,
            "VECTOR": config.vector,
            "EVICT": config.evict,
            "PDL": config.pdl,
        }
        programs = -(-blocks // config.columns)
        kernel = "dequantize_flat_kernel"
        return _make_plan(kernel, config, programs, pointers, (blocks,), constants)
    config = _fit_tile(
        config or config_for("dequantize_tiles", blocks, data.device), columns, scale_layout
    )
    stored = formats.scale_shape((), rows, columns, scale_layout)
    row_tiles, column_tiles = -(-stored[0] // config.rows), -(-columns // config.columns)
    constants |= {
        "LAYOUT": _kernels().LAYOUTS[scale_layout],
        "ROWS": config.rows,
        "COLUMNS": config.columns,
        "VECTOR": config.vector,
        "EVICT": config.evict,
        "PDL": config.pdl,
    }
    integers = (rows, columns, *stored, row_tiles, column_tiles)
    programs = batch * row_tiles * column_tiles
    kernel = "dequantize_tiles_kernel"
    return _make_plan(kernel, config, programs, pointers, integers, constants)


def _cast_of(device: torch.device) -> str:
    return _cast(device.type, platform.device_index(device))


def launch_quantize(
    input: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    alignment: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``mxfp8::quantize_triton``; raises BackendUnavailableError where a kernel does not compile."""
    device = input.device
    misaligned = input.data_ptr() & 15
    options = (dtype, scaling_mode, scale_layout, alignment)
    key = (device, input.dtype, input.shape, input.stride(), misaligned == 0, options)
    with _guard(device):
        plan = _plans.get(key)
        if plan is None:
            plan = _remember(key, _plan_quantize(input, *options, _cast_of(device)))
        outputs = ops.allocate_quantized(input, input.shape, dtype, scale_layout, alignment)
        _run(plan, input, outputs)
    return outputs


def launch_quantize_columnwise(
    input: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    alignment: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``mxfp8::quantize_columnwise_triton``."""
    layouts = (scale_layout, scale_layout)
    outputs = _launch_columns(input, dtype, scaling_mode, layouts, alignment, False)
    return outputs[0], outputs[1]


def launch_quantize_both(
    input: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    scale_layout_t: str | None = None,
    alignment: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """``mxfp8::quantize_both_triton``."""
    layouts = (scale_layout, scale_layout_t or scale_layout)
    return _launch_columns(input, dtype, scaling_mode, layouts, alignment, True)


def _launch_columns(
    input: torch.Tensor,
    dtype: torch.dtype | None,
    scaling_mode: str,
    layouts: tuple[str, str],
    alignment: int | None,
    both: bool,
) -> tuple[torch.Tensor, ...]:
    device = input.device
    misaligned = input.data_ptr() & 15
    options = (dtype, scaling_mode, layouts, alignment, both)
    key = (device, input.dtype, input.shape, input.stride(), misaligned == 0, options)
    transposed = (*input.shape[:-2], input.shape[-1], input.shape[-2])
    with _guard(device):
        plan = _plans.get(key)
        if plan is None:
            plan = _remember(key, _plan_columns(input, *options, _cast_of(device)))
        outputs_t = ops.allocate_quantized(input, transposed, dtype, layouts[1], alignment)
        outputs = outputs_t
        if both:
            outputs = ops.allocate_quantized(input, input.shape, dtype, layouts[0], alignment)
        _run(plan, input, (*outputs, *outputs_t))
    return (*outputs, *outputs_t) if both else outputs_t


def launch_dequantize(
    data: torch.Tensor,
    scale: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    scale_layout: str = "linear",
) -> torch.Tensor:
    """``mxfp8::dequantize_triton``."""
    device = data.device
    data, scale = data.contiguous(), scale.contiguous()
    alignments = (data.data_ptr() % 16 == 0, scale.data_ptr() % 16 == 0)
    key = (device, data.dtype, data.shape, alignments, dtype, scale_layout)
    with _guard(device):
        out = torch.empty(data.shape, dtype=dtype or torch.bfloat16, device=device)
        plan = _plans.get(key)
        if plan is None:
            made = _plan_dequantize(data, scale, out, scale_layout, _cast_of(device))
            plan = _remember(key, made)
        _run(plan, data, (scale, out))
    return out


def warmup(
    device: torch.device | str | None = None,
    *,
    input_dtypes: Iterable[torch.dtype] = (torch.bfloat16,),
    dtypes: Iterable[torch.dtype] = (torch.float8_e4m3fn,),
    scaling_modes: Iterable[str] = ("rceil",),
    scale_layouts: Iterable[str] = tuple(formats.SCALE_LAYOUTS),
) -> None:
    """Compile and load the usual variants of ``quantize`` and ``dequantize`` before they are needed.

    Compiles what whole matrices of every size class use, by running each once on zeros; about a
    second for each variant that Triton's cache on disk does not hold.

    Args:
        device: a CUDA, ROCm or XPU device; None means the current one.
        input_dtypes: types of x, and of the results of ``dequantize``.
        dtypes: FP8 types.
        scaling_modes: modes of ``quantize``.
        scale_layouts: layouts of the scales.

    Raises:
        BackendUnavailableError: the device has no Triton, or a kernel does not compile.
    """
    if device is None:
        device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    device = torch.device(device)
    if device.index is None and device.type != "cpu":
        device = torch.device(device.type, platform.device_index(device))
    reason = _unavailable_reason(device)
    if reason is not None:
        raise BackendUnavailableError("triton", reason)
    for input_dtype in input_dtypes:
        for elements in (1 << 12, 1 << 20, 1 << 24):
            x = torch.zeros(elements >> 12, 1 << 12, dtype=input_dtype, device=device)
            for dtype in dtypes:
                for layout in scale_layouts:
                    for mode in scaling_modes:
                        data, scale = launch_quantize(
                            x, dtype=dtype, scaling_mode=mode, scale_layout=layout
                        )
                    launch_dequantize(data, scale, dtype=input_dtype, scale_layout=layout)


BACKEND = Backend(
    name="triton",
    dispatch_keys=("CUDA", "XPU"),
    launchers={
        "quantize": launch_quantize,
        "quantize_columnwise": launch_quantize_columnwise,
        "quantize_both": launch_quantize_both,
        "dequantize": launch_dequantize,
    },
    unavailable_reason=_unavailable_reason,
)
