"""``torch.vmap`` of the ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _one_of(argument: Any, dim: int | None) -> Any:
    """What the function that is mapped is called with, without its numbers."""
    if not isinstance(argument, torch.Tensor) or argument.layout != torch.strided:
        return argument
    shape = list(argument.shape)
    if dim is not None:
        del shape[dim]
    return torch.empty(shape, dtype=argument.dtype, device="meta")


def vmap_rule(check: Callable[..., None], op: Callable[..., Any]) -> Callable[..., Any]:
    """Rule of ``op``: batches are part of every operation, so a mapped dimension becomes the first of them.

    Args:
        check: raises ValueError for a call that ``op`` refuses.
        op: of this package.
    """

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
        # With a dimension more, a call may be valid that is not: [K] is no matrix, a stack of them is.
        check(*map(_one_of, args, in_dims), **kwargs)
        arguments = list(args)
        for i, (argument, dim) in enumerate(zip(args, in_dims, strict=True)):
            if isinstance(argument, torch.Tensor):
                if dim is None:
                    arguments[i] = argument.unsqueeze(0).expand(info.batch_size, *argument.shape)
                else:
                    arguments[i] = argument.movedim(dim, 0)
        # [K] is one row of one matrix: with a batch dimension in front it stays one row.
        is_row = arguments[0].dim() == 2
        if is_row:
            arguments = [
                a.unsqueeze(-2) if isinstance(a, torch.Tensor) and a.dim() == 2 else a
                for a in arguments
            ]
        results = op(*arguments, **kwargs)
        outputs = (results,) if isinstance(results, torch.Tensor) else results
        if is_row:  # leaves swizzled scales, of 8 or 128 rows, as they are
            outputs = tuple(output.squeeze(-2) for output in outputs)
        if isinstance(results, torch.Tensor):
            return outputs[0], 0
        return outputs, (0,) * len(outputs)

    return rule
