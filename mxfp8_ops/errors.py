"""Exceptions raised by mxfp8_ops."""

from __future__ import annotations

import torch


class BackendUnavailableError(RuntimeError):
    """A backend that was asked for by name cannot serve the call.

    Attributes:
        backend: name of the backend, for example ``"cute_dsl"``.
        reason: why it cannot serve, as a sentence for the user.
    """

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(f"backend '{backend}' is not available: {reason}")
        self.backend = backend
        self.reason = reason

    def __reduce__(self) -> tuple[type[BackendUnavailableError], tuple[str, str]]:
        # An exception is pickled by its message alone, and worker processes send theirs to the parent.
        return type(self), (self.backend, self.reason)


def is_device_fault(error: Exception) -> bool:
    """Whether ``error`` tells of the device or of an earlier kernel, not of the backend that met it.

    Another backend would meet a full memory or an illegal address too, and callers that free memory
    and try again need the error itself. Triton reports both as a plain RuntimeError.
    """
    if isinstance(error, (torch.OutOfMemoryError, torch.AcceleratorError)):
        return True
    return any(words in str(error) for words in ("out of memory", "illegal memory access"))
