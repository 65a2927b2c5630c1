"""Which backend serves a call, and the kernels of the dispatcher ops."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from . import native, platform
from .backends import Backend
from .backends.cpu import BACKEND as CPU
from .backends.cuda import BACKEND as CUDA
from .backends.cute_dsl import BACKEND as CUTE_DSL
from .backends.torch import BACKEND as TORCH
from .backends.triton import BACKEND as TRITON
from .backends.xpu import BACKEND as XPU
from .backends.xpu_vllm import BACKEND as XPU_VLLM
from .errors import BackendUnavailableError
from .ops import OPERATIONS, Operation, register_kernel

_LOG = logging.getLogger("mxfp8_ops")

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (CUTE_DSL, CUDA, TRITON, XPU, XPU_VLLM, CPU, TORCH)
}


def preference(device: torch.device) -> tuple[str, ...]:
    """Names of the backends for ``device``, best first."""
    if device.type == "cpu":
        return ("cpu", "torch")
    if device.type == "xpu":
        return ("xpu", "triton", "torch")
    if device.type == "cuda":
        if platform.is_rocm():
            return ("triton", "torch")
        try:
            capability = platform.compute_capability(platform.device_index(device))
        except Exception:  # no GPU, or a broken driver: the reasons of the backends tell
            capability = (0, 0)
        if capability >= (10, 0):
            return ("cute_dsl", "cuda", "triton", "torch")
        return ("cuda", "triton", "torch")
    return ("torch",)


@dataclass(frozen=True)
class Settings:
    """The environment, read once on import.

    ``MXFP8_OPS_BACKEND`` names the backend of every operation that the backend has an op for;
    ``MXFP8_OPS_STRICT=1`` leaves backends that deviate from docs/numerics.md out of the automatic choice.
    """

    backend: str | None
    strict: bool

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the two variables; an empty value or ``auto`` means automatic choice."""
        name = os.environ.get("MXFP8_OPS_BACKEND", "").strip()
        strict = os.environ.get("MXFP8_OPS_STRICT", "").strip().lower()
        return cls(
            backend=None if name in ("", "auto") else name,
            strict=strict not in ("", "0", "false", "no", "off"),
        )


SETTINGS = Settings.from_environment()

_lock = threading.RLock()
_reasons: dict[tuple[str, torch.device], str | None] = {}
_routes: dict[tuple[str, torch.device], tuple[Backend, ...]] = {}
# Of the first of the routes, where it has one.
_replays: dict[tuple[str, torch.device | None], Callable[..., Any]] = {}


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    # Another thread may hold the lock at the fork, and would never release it in the child. The two
    # dictionaries change by single assignments, so that the child finds them whole.
    os.register_at_fork(after_in_child=_renew_lock)


def backend_named(name: str, source: str = "backend", also: tuple[str, ...] = ()) -> Backend:
    """The backend called ``name``; ValueError lists the valid names, and ``also`` with them."""
    if name not in BACKENDS:
        valid = ", ".join(repr(n) for n in (*BACKENDS, *also))
        raise ValueError(f"{source} must be one of {valid}, got {name!r}")
    return BACKENDS[name]


def unavailable_reason(backend: Backend, device: torch.device) -> str | None:
    """Why ``backend`` cannot serve ``device``, or None; probed once."""
    key = (backend.name, device)
    if key not in _reasons:
        with _lock:
            if key not in _reasons:
                try:
                    _reasons[key] = backend.unavailable_reason(device)
                except (Exception, SystemExit) as error:  # a broken package may raise anything
                    _reasons[key] = f"its probe failed with {type(error).__name__}: {error}"
    return _reasons[key]


def mark_unavailable(backend: Backend, device: torch.device, reason: str) -> None:
    """Take ``backend`` out of the choice for ``device``; logged once."""
    with _lock:
        known = _reasons.get((backend.name, device))
        _reasons[(backend.name, device)] = reason
        for key in [k for k in _routes if k[1] == device]:
            del _routes[key]
            _replays.pop(key, None)
    if known is None:
        _LOG.warning(
            "backend '%s' failed on %s and is left out from now on: %s",
            backend.name,
            device,
            reason,
        )


def routes(operation: str, device: torch.device) -> tuple[Backend, ...]:
    """The backends that can serve ``operation`` on ``device``, best first; cached."""
    key = (operation, device)
    found = _routes.get(key)
    return _resolve(key) if found is None else found


def served_by(operation: str, device: torch.device) -> tuple[tuple[Backend, ...], str | None]:
    """``routes`` and None, or nothing and the sentence why what MXFP8_OPS_BACKEND names cannot serve."""
    try:
        return routes(operation, device), None
    except (BackendUnavailableError, ValueError) as error:
        return (), str(error)


def _resolve(key: tuple[str, torch.device]) -> tuple[Backend, ...]:
    operation, device = key
    with _lock:
        if key in _routes:
            return _routes[key]
        forced = SETTINGS.backend
        if forced is not None:
            backend = backend_named(forced, "MXFP8_OPS_BACKEND", also=("auto",))
            if operation in backend.launchers or forced in OPERATIONS[operation].backends:
                _require_available(backend, device)
                return _keep(key, (backend,))
        candidates = []
        for name in preference(device):
            backend = BACKENDS[name]
            reason = unavailable_reason(backend, device)
            if reason is None and SETTINGS.strict and backend.deviation is not None:
                reason = f"MXFP8_OPS_STRICT is set and its bytes deviate: {backend.deviation}"
            if reason is not None:
                _LOG.info("%s on %s: backend '%s' left out: %s", operation, device, name, reason)
            elif operation in backend.launchers:
                candidates.append(backend)
        # The scale layouts have no kernel for accelerators: nothing is left out there.
        has_kernels = set(OPERATIONS[operation].backends) - {"torch", "cpu"}
        if candidates[0].name == "torch" and has_kernels and device.type not in ("cpu", "meta"):
            _LOG.warning(
                "%s on %s is served by the torch reference, which is slow; "
                "mxfp8_ops.backends() says why the other backends are left out",
                operation,
                device,
            )
        return _keep(key, tuple(candidates))


def _keep(key: tuple[str, torch.device], found: tuple[Backend, ...]) -> tuple[Backend, ...]:
    _routes[key] = found
    if key[0] in found[0].replays:
        _replays[key] = found[0].replays[key[0]]
    return found


def _require_available(backend: Backend, device: torch.device) -> None:
    reason = unavailable_reason(backend, device)
    if reason is not None:
        raise BackendUnavailableError(backend.name, reason)


def _dispatcher_kernel(operation: Operation) -> Callable[..., Any]:
    name, check, fake = operation.name, operation.check, operation.fake

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        # None for what is no tensor, which the check refuses.
        device = getattr(args[0], "device", None)
        replay = _replays.get((name, device)) if device is not None else None
        if replay is not None:
            result = replay(*args, **kwargs)
            if result is not None:
                return result
        check(*args, **kwargs)
        if args[0].numel() == 0:
            return fake(*args, **kwargs)
        device = args[0].device
        candidates = routes(name, device)
        for backend in candidates:
            reason = backend.unsupported_reason(name, *args, **kwargs)
            if reason is not None:
                if len(candidates) == 1:
                    raise BackendUnavailableError(backend.name, reason)
                continue
            try:
                return backend.launchers[name](*args, **kwargs)
            except BackendUnavailableError as error:
                if len(candidates) == 1:
                    raise
                mark_unavailable(backend, device, error.reason)
        raise BackendUnavailableError("torch", f"no backend is left for {name} on {device}")

    dispatch.__name__ = dispatch.__qualname__ = f"dispatch_{name}"
    return dispatch


def _backend_kernel(operation: Operation, backend: Backend) -> Callable[..., Any]:
    """Kernel of ``mxfp8::<operation>_<backend>``: this backend or an error, never another one."""
    name, check, fake = operation.name, operation.check, operation.fake

    def launch(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        _require_available(backend, args[0].device)
        if args[0].numel() == 0:
            return fake(*args, **kwargs)
        reason = backend.unsupported_reason(name, *args, **kwargs)
        if reason is not None:
            raise BackendUnavailableError(backend.name, reason)
        return backend.launchers[name](*args, **kwargs)

    launch.__name__ = launch.__qualname__ = f"launch_{operation.op_name(backend.name)}"
    return launch


def _register() -> None:
    for operation in OPERATIONS.values():
        for name in operation.backends:
            backend = BACKENDS[name]
            kernel = _backend_kernel(operation, backend)
            # The default kernel also answers for devices that the backend does not serve.
            register_kernel(operation.op_name(name), "CompositeExplicitAutograd", kernel)
        register_kernel(operation.name, "CompositeExplicitAutograd", _dispatcher_kernel(operation))
    if SETTINGS.backend is None and native.load_error("cpu") is None:
        # The native library serves every call on the CPU, so its kernels are those of the dispatcher
        # ops too: a call then never enters Python (2.6 us instead of 5.9 us for 1 x 64).
        native.library("cpu").mxfp8_register_dispatcher()
    if SETTINGS.backend is None and CUDA.registers_kernels and not platform.is_rocm():
        # Private, and what torch itself uses for its capability checks: runs the function as soon as
        # CUDA is initialised, before the first CUDA tensor exists. Without it Python dispatches.
        lazy_call = getattr(torch.cuda, "_lazy_call", None)
        if lazy_call is not None:
            lazy_call(_serve_cuda_natively)


def _serve_cuda_natively() -> None:
    """Give the CUDA dispatch key to the native library where no device prefers another backend."""
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        if preference(device)[0] != "cuda" or unavailable_reason(CUDA, device) is not None:
            return
    native.library("cuda").mxfp8_register_cuda_dispatcher()


_register()
