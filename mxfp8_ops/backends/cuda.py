"""The cuda backend: its ops exist, its kernels are not part of this version."""

from __future__ import annotations

import torch

from . import Backend


def _unavailable_reason(device: torch.device) -> str | None:
    return "this version of mxfp8_ops has no kernels for it"


BACKEND = Backend(
    name="cuda",
    dispatch_keys=(),
    launchers={},
    unavailable_reason=_unavailable_reason,
)
