"""Which tensors of a checkpoint are quantized, and why the others are not."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from ..formats import BLOCK_SIZE
from .source import TensorInfo

QUANTIZABLE = ("BF16", "F16", "F32")

DEFAULT_EXCLUDE = (
    *("lm_head", "*.lm_head", "*output_embeddings*", "*classifier*", "*.score"),
    *("*embed*", "*.wte", "*.wpe", "wte", "wpe"),
    *("*norm*", "*.ln_?", "*.ln_*"),
    *("*router*", "*.gate", "*.gate_inp", "*shared_expert_gate"),
)
"""Patterns of module names that stay as they are: output heads, embeddings, norms and routers."""

# Layers that engines fuse into one matrix, which has one data type.
_FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
)


def reason_to_leave(info: TensorInfo, include: Sequence[str], exclude: Sequence[str]) -> str | None:
    """Why a tensor is copied as it is; None where it is quantized.

    Args:
        info: the tensor.
        include: patterns (``fnmatch``) of module names; where there are any, one has to match.
        exclude: patterns of module names, none of which may match.
    """
    if is_fused_experts(info):
        return "fused experts"
    if not info.name.endswith(".weight"):
        return "not a weight"
    if len(info.shape) != 2:
        return f"{len(info.shape)}-dimensional"
    module = info.name.removesuffix(".weight")
    matching = next((p for p in exclude if fnmatchcase(module, p)), None)
    if matching is not None:
        return f"excluded by {matching!r}"
    if include and not any(fnmatchcase(module, p) for p in include):
        return "not included"
    if info.dtype not in QUANTIZABLE:
        return f"of type {info.dtype}"
    if info.numel == 0:
        return "empty"
    if info.shape[1] % BLOCK_SIZE != 0:
        return f"K = {info.shape[1]} is no multiple of {BLOCK_SIZE}"
    return None


def module_of(info: TensorInfo) -> str | None:
    """The module whose matrix, or whose experts' matrices in one tensor, this is; else None."""
    if info.name.endswith(".weight"):
        return info.name.removesuffix(".weight") if len(info.shape) in (2, 3) else None
    return info.name.rpartition(".")[0] or None if is_fused_experts(info) else None


def is_fused_experts(info: TensorInfo) -> bool:
    """Whether this holds the matrices of all experts of a layer, transposed or not as the model has it."""
    named = "expert" in info.name or not info.name.endswith(".weight")
    return named and len(info.shape) == 3 and info.dtype in QUANTIZABLE


def names_within(quantized: set[str], left: set[str]) -> list[str]:
    """Sentences on quantized modules whose name contains that of one that is left."""
    return [
        f"{module} is quantized, but vLLM leaves every module whose name contains {other}, "
        "which is not quantized"
        for module in sorted(quantized)
        for other in sorted(left)
        if other in module
    ]


def split_fusions(quantized: set[str], left: set[str]) -> list[str]:
    """Sentences on layers that engines fuse and of which only some are quantized; module names."""
    problems = []
    for names in _FUSED:
        for module in sorted(quantized):
            prefix, _, last = module.rpartition(".")
            if last not in names:
                continue
            siblings = [f"{prefix}.{name}" if prefix else name for name in names]
            others = [s for s in siblings if s in left]
            if others and module == next(s for s in siblings if s in quantized):
                problems.append(
                    f"{module} is quantized and {', '.join(others)} is not, but engines fuse them"
                )
    return problems
