"""What the copies of this package in one process share: op names belong to the process.

A second copy (reloaded, or vendored under another name) takes from the first what must be one: the ops,
the native libraries, whose loading registers kernels, and the class of the errors that the ops raise.
"""

from __future__ import annotations

from typing import TypeVar

import torch

NAMESPACE = "mxfp8"

T = TypeVar("T")


def from_first_copy(name: str, own: T) -> T:
    """What the first copy called ``name``, which is ``own`` where this is the first copy."""
    first: T = getattr(torch.ops, NAMESPACE).__dict__.setdefault(f"_{name}", own)
    return first
