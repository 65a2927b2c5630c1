"""Exceptions raised by mxfp8_ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ._copies import from_first_copy


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


if not TYPE_CHECKING:
    BackendUnavailableError = from_first_copy("error", BackendUnavailableError)


# Reported as a plain RuntimeError through Triton, cutlass-dsl and torch's XPU code.
_FULL = (
    "out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "UR_RESULT_ERROR_OUT_OF_HOST_MEMORY",
    "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
    "0x70000002",  # ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY
    "0x70000003",  # ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY
)
_LOST = (
    "illegal memory access",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_FAILED",
    "unspecified launch failure",
    "UR_RESULT_ERROR_DEVICE_LOST",
    "0x70000001",  # ZE_RESULT_ERROR_DEVICE_LOST
)


def is_lost_device(error: Exception) -> bool:
    """Whether ``error`` says that the device answers no more in this process."""
    return isinstance(error, torch.AcceleratorError) or any(w in str(error) for w in _LOST)


def is_device_fault(error: Exception) -> bool:
    """Whether ``error`` tells of the device or of an earlier kernel, not of the backend that met it.

    Another backend would meet a full memory or an illegal address too, and callers that free memory
    and try again need the error itself.
    """
    if isinstance(error, torch.OutOfMemoryError) or is_lost_device(error):
        return True
    return any(words in str(error) for words in _FULL)
