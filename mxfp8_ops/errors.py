"""Exceptions raised by mxfp8_ops."""

from __future__ import annotations


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
