"""Sharding rules: with them ``torch.ops.mxfp8`` quantizes and dequantizes DTensors shard by shard.

Importing this module registers them; nothing else imports it, as DTensor takes longer to import than
all of ``mxfp8_ops``. A sharding is in a rule only where the shards of the result hold the bytes
of the unsharded result. From any other placement DTensor first redistributes its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

try:
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding
except ImportError as error:
    raise ImportError(
        f"mxfp8_ops.distributed needs a torch with torch.distributed.tensor, and torch "
        f"{torch.__version__} cannot import it: {error}"
    ) from error

from .formats import BLOCK_SIZE, SCALE_LAYOUTS
from .ops import OPERATIONS

_Shardings = list[tuple[list[Any], list[Any]]]


def _splits(
    shape: Sequence[Any], dim: int, blocks: int, layout: str, alignment: int | None, ranks: int
) -> bool:
    """Whether shards of ``dim`` give shards of the result, for blocks along the dimension ``blocks``."""
    if dim < len(shape) - 2:
        return True
    if dim == blocks:
        # No block on two ranks and no padding on any. The columns of a swizzled scale lie tile by tile.
        unit = BLOCK_SIZE if alignment is None else alignment
        return layout == "linear" and bool(shape[dim] % (unit * ranks) == 0)
    # A band of whole tiles lies together: row shards of a padded scale are scales of row shards.
    rows = SCALE_LAYOUTS[layout].tile_rows
    return rows == 1 or bool(shape[dim] % (rows * ranks) == 0)


def _shardings(
    input: Any, alignment: int | None, *, rowwise: str | None = None, columnwise: str | None = None
) -> _Shardings:
    """Placements of the outputs and of the input, for scales of the layouts that are not None."""
    last = len(input.shape) - 1
    # Mesh dimensions may shard one dimension together: the whole mesh is the most that can.
    ranks = input.mesh.size()
    results = [(layout, swap) for layout, swap in ((rowwise, 0), (columnwise, 1)) if layout]
    found: _Shardings = [([Replicate()] * 2 * len(results), [Replicate()])]
    for dim in range(len(input.shape)):
        if all(_splits(input.shape, dim, last - s, n, alignment, ranks) for n, s in results):
            placements: list[Any] = []
            for _, swap in results:
                placements += [Shard(2 * last - 1 - dim if swap and dim >= last - 1 else dim)] * 2
            found.append((placements, [Shard(dim)]))
    return found


def _quantize(
    input: Any, *, scale_layout: str = "linear", alignment: int | None = None, **_: Any
) -> _Shardings:
    return _shardings(input, alignment, rowwise=scale_layout)


def _quantize_columnwise(
    input: Any, *, scale_layout: str = "linear", alignment: int | None = None, **_: Any
) -> _Shardings:
    return _shardings(input, alignment, columnwise=scale_layout)


def _quantize_both(
    input: Any,
    *,
    scale_layout: str = "linear",
    scale_layout_t: str | None = None,
    alignment: int | None = None,
    **_: Any,
) -> _Shardings:
    return _shardings(
        input, alignment, rowwise=scale_layout, columnwise=scale_layout_t or scale_layout
    )


def _dequantize(data: Any, scale: Any, *, scale_layout: str = "linear", **_: Any) -> _Shardings:
    # The way back: what quantize returns is given, what it takes is returned.
    return [(given, made) for made, given in _shardings(data, None, rowwise=scale_layout)]


_RULES = {
    "quantize": _quantize,
    "quantize_columnwise": _quantize_columnwise,
    "quantize_both": _quantize_both,
    "dequantize": _dequantize,
}


def _register() -> None:
    known = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    for name, rule in _RULES.items():
        for backend in (None, *OPERATIONS[name].backends):
            op = OPERATIONS[name].op(backend)
            register_sharding(op)(rule)
            # DTensor keeps the decisions of rules by their tensors and, from register_sharding, their
            # integers: a call with swizzled scales would get what was decided for linear ones.
            options = [a.name for a in op._schema.arguments if a.kwarg_only]
            known[op].static_kwargkey = options


_register()
