"""One file per backend, none importing another; optional packages are imported inside functions.

A backend file defines ``BACKEND``, a ``Backend`` whose launchers take the arguments of the operation's
schema. They are called with checked, non-empty input. A launcher that cannot build or compile its
kernel raises ``BackendUnavailableError``: the dispatcher then marks the backend and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


def _supports_everything(operation: str, *args: Any, **kwargs: Any) -> None:
    return None


@dataclass(frozen=True)
class Backend:
    """What the dispatcher knows of a backend.

    Attributes:
        name: as in ``mxfp8::quantize_<name>``.
        dispatch_keys: keys on which its ops have kernels.
        launchers: operation name to launcher.
        unavailable_reason: None where the device can be served, else a sentence. Probed on first use
            and cached by the dispatcher; an exception counts as a reason.
        unsupported_reason: ``(operation, *args, **kwargs)`` of a call to None or a sentence. Cheap:
            it runs on every call.
        deviation: how its bytes differ from docs/numerics.md; such a backend is left out under
            ``MXFP8_OPS_STRICT=1``.
        registers_kernels: False where a native library registers the kernels of the backend's ops.
        replays: operation name to a function of the same arguments that serves a call whose like was
            served before, without checks, or returns None.
    """

    name: str
    dispatch_keys: tuple[str, ...]
    launchers: Mapping[str, Callable[..., Any]]
    unavailable_reason: Callable[[torch.device], str | None]
    unsupported_reason: Callable[..., str | None] = field(default=_supports_everything)
    deviation: str | None = None
    registers_kernels: bool = True
    replays: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
