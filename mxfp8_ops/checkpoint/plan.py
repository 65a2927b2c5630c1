"""What a conversion will do: options, and a decision on every tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import formats
from .._version import __version__
from .errors import CheckpointError
from .select import (
    DEFAULT_EXCLUDE,
    is_fused_experts,
    module_of,
    names_within,
    reason_to_leave,
    split_fusions,
)
from .source import Source, TensorInfo
from .targets import TARGETS, Target


@dataclass(frozen=True)
class Options:
    """How a checkpoint is converted.

    Attributes:
        target: a name of ``TARGETS``: ``"compressed-tensors"``, ``"modelopt"`` or ``"mxfp8"``.
        include: patterns (``fnmatch``) of module names; where there are any, one has to match.
        exclude: patterns of module names that stay as they are.
        default_exclude: whether ``DEFAULT_EXCLUDE`` is added to ``exclude``.
        scaling_mode: as for ``mxfp8_ops.quantize``.
        device: where the work is done.
        backend: as for ``mxfp8_ops.quantize``.
        jobs: files converted at once, each with its own memory.
    """

    target: str = "compressed-tensors"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    default_exclude: bool = True
    scaling_mode: str = "rceil"
    device: str = "cpu"
    backend: str | None = None
    jobs: int = 1

    def __post_init__(self) -> None:
        """Refuse values that no conversion has."""
        choices = (("target", TARGETS), ("scaling_mode", formats.SCALING_MODES))
        for name, allowed in choices:
            if getattr(self, name) not in allowed:
                known = ", ".join(repr(a) for a in allowed)
                raise ValueError(f"{name} must be one of {known}, got {getattr(self, name)!r}")
        for name in ("include", "exclude"):
            if isinstance(getattr(self, name), str):  # its letters would be the patterns
                raise ValueError(f"{name} must be a tuple of patterns, got {getattr(self, name)!r}")
        if self.jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {self.jobs}")


@dataclass(frozen=True)
class Plan:
    """What a conversion does: ``reasons[file][tensor]`` is None where the tensor is quantized."""

    path: Path
    source: Source
    target: Target
    options: Options
    reasons: dict[str, dict[str, str | None]]

    def tensors(self) -> Iterator[tuple[str, TensorInfo, str | None]]:
        """``(file, tensor, reason to leave it)`` of everything."""
        for file, tensors in self.source.files.items():
            for name, info in tensors.items():
                yield file, info, self.reasons[file][name]

    def modules(self, quantized: bool) -> set[str]:
        """Names of the modules with matrices that are, or are not, quantized."""
        return {
            module
            for _, info, reason in self.tensors()
            if (reason is None) is quantized and (module := module_of(info)) is not None
        }

    def ignored(self) -> list[str]:
        """What config.json lists as not quantized; ``lm_head`` too where it shares the embedding."""
        return sorted(self.modules(quantized=False) | ({"lm_head"} - self.modules(quantized=True)))

    def warnings(self) -> list[str]:
        """Sentences on choices that engines may not load."""
        quantized, left = self.modules(quantized=True), self.modules(quantized=False)
        problems = split_fusions(quantized, left)
        if self.target.excludes_substrings:
            problems += names_within(quantized, set(self.ignored()))
        fused = [i for _, i, _ in self.tensors() if is_fused_experts(i)]
        if fused:
            problems.append(
                f"{len(fused)} tensors of fused experts, such as {fused[0].name}, were copied: "
                "experts are quantized where each has matrices of its own"
            )
        for _, info, _ in self.tensors():
            if info.dtype.startswith("F8_") and module_of(info) is not None:
                problems.append(
                    f"{info.name} is {info.dtype} already and was copied without a scale"
                )
        return problems

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the bytes of the result."""
        return {
            "mxfp8_ops": __version__,
            "target": self.target.name,
            "scaling_mode": self.options.scaling_mode,
            "quantized": sorted(self.modules(quantized=True)),
            "source": self.source.fingerprint(),
        }


def make_plan(input: str | Path, options: Options | None = None) -> Plan:
    """Read the headers of ``input`` and decide on every tensor; nothing is written.

    Args:
        input: a safetensors file or a Hugging Face model folder.
        options: how to convert; None means ``Options()``.

    Raises:
        CheckpointError: ``input`` cannot be read or is quantized.
    """
    options, path = options or Options(), Path(input)
    source = Source.open(path)
    exclude = (*options.exclude, *(DEFAULT_EXCLUDE if options.default_exclude else ()))
    reasons = {
        file: {name: reason_to_leave(i, options.include, exclude) for name, i in tensors.items()}
        for file, tensors in source.files.items()
    }
    plan = Plan(path, source, TARGETS[options.target], options, reasons)
    names = {info.name for _, info, _ in plan.tensors()}
    for module in plan.modules(quantized=True):
        scale = plan.target.scale_name(f"{module}.weight")
        if scale in names:
            raise CheckpointError(f"{path} already contains {scale!r}, a scale of {module}")
    return plan
