"""Which Triton kernel serves a call, with which configuration and arguments."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .. import formats, ops, platform
from ..formats import BLOCK_SIZE
from .triton_launch import Plan, Variant, kernels, make_plan


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


def config_for(kernel: str, blocks: int, device: torch.device) -> Config:
    """The launch configuration of ``kernel`` for a tensor of so many blocks on ``device``."""
    config = next(config for largest, config in CONFIGS[kernel] if blocks <= largest)
    return config if _overlaps_launches(device) else config._replace(pdl=False)


def _overlaps_launches(device: torch.device) -> bool:
    """Whether the device has programmatic dependent launch."""
    if device.type != "cuda" or platform.is_rocm():
        return False
    return platform.compute_capability(platform.device_index(device)) >= (9, 0)


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
        "MODE": kernels().MODES[mode],
        "E5M2": dtype == torch.float8_e5m2,
        "CAST": kernels().CASTS[cast],
    }


def _launch_constants(config: Config) -> dict[str, Any]:
    return {"VECTOR": config.vector, "EVICT": config.evict, "PDL": config.pdl}


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


def plan_quantize(
    x: torch.Tensor,
    *,
    cast: str,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    alignment: int | None = None,
    config: Config | None = None,
) -> Plan:
    """How ``quantize`` is called for inputs like ``x``; ``config`` overrides the table."""
    x, (batch, rows, row_stride, batch_stride), copied = _dense_plan_input(x)
    data_shape, _ = formats.quantized_shapes(x.shape, scale_layout, alignment)
    columns, data_columns = x.shape[-1], data_shape[-1] // BLOCK_SIZE
    outputs = [*ops.allocate_quantized(x, x.shape, dtype, scale_layout, alignment)]
    blocks = batch * rows * data_columns
    constants = _constants(scaling_mode, dtype, cast)

    if scale_layout == "linear" and x.is_contiguous() and columns == data_shape[-1]:
        config = config or config_for("flat", blocks, x.device)
        constants |= {"BLOCKS": config.columns, **_launch_constants(config)}
        variant = Variant("quantize_flat_kernel", config.warps, (blocks,), constants)
        return make_plan(variant, -(-blocks // config.columns), [x], outputs, copy=copied)

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
        "LAYOUT": kernels().LAYOUTS[scale_layout],
        "ROWS": config.rows,
        "COLUMNS": config.columns,
        "STRIDE_UNIT": unit,
        "COLUMN_UNIT": column_unit,
        **_launch_constants(config),
    }
    variant = Variant("quantize_tiles_kernel", config.warps, integers, constants)
    return make_plan(variant, batch * row_tiles * column_tiles, [x], outputs, copy=copied)


def plan_columns(
    x: torch.Tensor,
    *,
    both: bool,
    cast: str,
    dtype: torch.dtype | None = None,
    scaling_mode: str = "rceil",
    scale_layout: str = "linear",
    scale_layout_t: str | None = None,
    alignment: int | None = None,
    config: Config | None = None,
) -> Plan:
    """How ``quantize_columnwise`` or, with ``both``, ``quantize_both`` is called."""
    layouts = (scale_layout, scale_layout_t or scale_layout)
    x, (batch, rows, row_stride, batch_stride), copied = _dense_plan_input(x)
    columns = x.shape[-1]
    step = BLOCK_SIZE if alignment is None else alignment
    data_columns = formats.round_up(columns, step) // BLOCK_SIZE if both else 0
    data_t_columns = formats.round_up(rows, step) // BLOCK_SIZE
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
        "LAYOUT": kernels().LAYOUTS[layouts[0]],
        "LAYOUT_T": kernels().LAYOUTS[layouts[1]],
        "AXIS": kernels().OCTET_AXIS,
        "OCTETS": config.rows // 8,
        "COLUMNS": config.columns,
        "GROUP": config.group,
        "STRIDE_UNIT": unit,
        "COLUMN_UNIT": column_unit,
        **_launch_constants(config),
    }
    transposed = (*x.shape[:-2], columns, rows)
    outputs = [*ops.allocate_quantized(x, transposed, dtype, layouts[1], alignment)]
    if both:
        outputs = [*ops.allocate_quantized(x, x.shape, dtype, layouts[0], alignment), *outputs]
    variant = Variant("quantize_columns_kernel", config.warps, integers, constants)
    programs = batch * row_tiles * column_tiles
    return make_plan(variant, programs, [x], outputs, 1 if both else 2, copied)


def plan_dequantize(
    data: torch.Tensor,
    scale: torch.Tensor,
    *,
    cast: str,
    dtype: torch.dtype | None = None,
    scale_layout: str = "linear",
    config: Config | None = None,
) -> Plan:
    """How ``dequantize`` is called."""
    columns = data.shape[-1] // BLOCK_SIZE
    rows = data.shape[-2] if data.dim() > 1 else 1
    blocks = data.numel() // BLOCK_SIZE
    batch = blocks // (rows * columns)
    constants: dict[str, Any] = {
        "E5M2": data.dtype == torch.float8_e5m2,
        "CAST": kernels().CASTS["native" if cast in ("native", "satfinite") else "software"],
    }
    copy = not (data.is_contiguous() and scale.is_contiguous())
    inputs = [data.contiguous(), scale.contiguous()]
    outputs = [torch.empty(data.shape, dtype=dtype or torch.bfloat16, device=data.device)]
    if scale_layout == "linear":
        config = config or config_for("dequantize_flat", blocks, data.device)
        constants |= {"BLOCKS": config.columns, **_launch_constants(config)}
        variant = Variant("dequantize_flat_kernel", config.warps, (blocks,), constants)
        return make_plan(variant, -(-blocks // config.columns), inputs, outputs, copy=copy)
    config = _fit_tile(
        config or config_for("dequantize_tiles", blocks, data.device), columns, scale_layout
    )
    stored = formats.scale_shape((), rows, columns, scale_layout)
    row_tiles, column_tiles = -(-stored[0] // config.rows), -(-columns // config.columns)
    constants |= {
        "LAYOUT": kernels().LAYOUTS[scale_layout],
        "ROWS": config.rows,
        "COLUMNS": config.columns,
        **_launch_constants(config),
    }
    integers = (rows, columns, *stored, row_tiles, column_tiles)
    variant = Variant("dequantize_tiles_kernel", config.warps, integers, constants)
    return make_plan(variant, batch * row_tiles * column_tiles, inputs, outputs, copy=copy)
