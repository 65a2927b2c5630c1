"""Launch path of the triton backend: compiled kernels, and calls that are worked out once.

A plain Triton launch costs more host time than small shapes take on the device (29 us, where the copy of
1 x 4096 takes 1.7), so everything that depends on shapes and types alone is kept as a ``Plan``: an eager
call is a dictionary look-up, the allocation of the outputs and one call of Triton's launcher.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch

from .. import platform
from ..errors import BackendUnavailableError, is_device_fault

Plan = Callable[..., Any]
"""A call worked out: ``plan(*inputs)`` returns new outputs, ``plan(*inputs, outputs=...)`` fills them."""

Spec = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and dtype of an output."""

# Shapes seen. Serving engines use few; a workload with more starts over instead of growing.
_MAX_PLANS = 4096

lock = threading.RLock()
_plans: dict[Hashable, Plan] = {}
_variants: dict[tuple[Any, ...], Any] = {}


def _renew_lock() -> None:
    global lock
    lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    # Another thread may hold the lock at the fork, and would never release it in the child.
    os.register_at_fork(after_in_child=_renew_lock)


class Variant(NamedTuple):
    """A kernel with everything that selects its compiled form.

    Attributes:
        kernel: its name.
        warps: warps of a program.
        integers: the arguments between the pointers and the constants.
        constants: compile-time arguments, in order.
    """

    kernel: str
    warps: int
    integers: tuple[int, ...]
    constants: dict[str, Any]


@functools.cache
def kernels() -> Any:
    """The module of device code, which needs the package ``triton``."""
    from . import triton_kernels

    return triton_kernels


@functools.cache
def _knobs() -> Any:
    """Where Triton keeps its launch hooks; None before Triton 3.4."""
    try:
        from triton import knobs
    except ImportError:
        return None
    return knobs.runtime


@functools.cache
def _device_count(device_type: str) -> int:
    return 1 if device_type == "cpu" else torch.accelerator.device_count()


def guard(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Make ``device`` current: Triton launches on the current device and its current stream."""
    if _device_count(device.type) > 1:
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            return torch.cuda.device(device)
        if device.type == "xpu" and device.index != torch.xpu.current_device():
            return torch.xpu.device(device)
    return contextlib.nullcontext()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` with a type that Triton's pointers can have."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16)
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor


def _is_short(tensor: torch.Tensor) -> bool:
    """Whether Triton promises its AMD compiler that offsets into ``tensor`` fit 32 bits."""
    return platform.is_rocm() and tensor.untyped_storage().nbytes() < 1 << 31


def _compile(variant: Variant, pointers: Sequence[torch.Tensor]) -> Any:
    """The compiled kernel, to be indexed by its grid; kept by everything that selects a variant."""
    device = pointers[0].device
    if device.type == "cpu":
        return getattr(kernels(), variant.kernel)
    types = tuple((p.dtype, p.data_ptr() % 16 == 0, _is_short(p)) for p in pointers)
    key = (variant.kernel, device, types, tuple(variant.constants.values()), variant.warps)
    compiled = _variants.get(key)
    if compiled is not None:
        return compiled
    with lock:
        return _variants.get(key) or _variants.setdefault(key, _compile_new(variant, pointers))


def _compile_new(variant: Variant, pointers: Sequence[torch.Tensor]) -> Any:
    options: dict[str, Any] = {"num_warps": variant.warps}
    if variant.constants["PDL"]:
        options["launch_pdl"] = True
    try:
        compiled = getattr(kernels(), variant.kernel).warmup(
            *[_bits(p) for p in pointers],
            *variant.integers,
            **variant.constants,
            grid=(1,),
            **options,
        )
        if hasattr(compiled, "result"):  # Triton's asynchronous compilation is switched on
            compiled = compiled.result()
        compiled[(1, 1, 1)]  # loads it, which fails where the device lacks the resources
    except Exception as error:
        if is_device_fault(error):
            raise
        if platform.is_capturing(pointers[0].device):
            raise RuntimeError(
                f"{variant.kernel} could not be compiled while a CUDA graph is being captured "
                f"({error}); {platform.WARM_UP}"
            ) from error
        raise BackendUnavailableError(
            "triton", f"{variant.kernel} failed to compile: {type(error).__name__}: {error}"
        ) from error
    return compiled


def _largest_grid(device: torch.device, warps: int) -> int:
    """Most programs of a launch: CUDA limits their number, HIP and SYCL that of their threads."""
    if device.type == "cuda" and platform.is_rocm():
        return 0xFFFFFFFF // (warps * 64)  # lanes of a wave, at most
    if device.type == "xpu":
        return 0x7FFFFFFF // (warps * 32)
    return 0x7FFFFFFF


def make_plan(
    variant: Variant,
    programs: int,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    repeats: int = 1,
    copy: bool = False,
) -> Plan:
    """Compile ``variant`` on the current device and bind it to its grid and arguments.

    Args:
        variant: the kernel and its arguments other than pointers.
        programs: size of the grid.
        inputs: stand for those of the calls: only types, alignments and the device are read.
        outputs: stand for those of the calls, which get new ones of their shapes and strides.
        repeats: how often the outputs follow each other as arguments; 2 where the kernel has pointers
            for outputs that this call does not want.
        copy: whether inputs must be made contiguous first.
    """
    device = inputs[0].device
    limit = _largest_grid(device, variant.warps)
    if programs > limit:
        reason = (
            f"{programs} programs of {variant.warps} warps exceed a grid of {limit} on {device}"
        )
        raise BackendUnavailableError("triton", reason)
    compiled = _compile(variant, [*inputs, *[*outputs] * repeats])
    # A compiled kernel takes every argument of the source, constants included.
    arguments = (*variant.integers, *variant.constants.values())
    run = compiled[(programs, 1, 1)]
    specs = [(tuple(o.shape), o.stride(), o.dtype) for o in outputs]
    single = len(specs) == 1
    knobs = _knobs()

    def call(*inputs: torch.Tensor, outputs: Sequence[torch.Tensor] | None = None) -> Any:
        if copy:
            inputs = tuple(t.contiguous() for t in inputs)
        if outputs is None:
            outputs = allocate(specs, device)
        tensors = (*inputs, *[*outputs] * repeats)
        run(*[_bits(t) for t in tensors], *arguments)
        return outputs[0] if single else outputs

    if device.type != "cuda" or knobs is None:
        return _on_device(call, device)

    # Below compiled[grid], which calls Triton's launch hooks even where there are none: 2.0 of 4.7 us.
    # An address may stand for a tensor, of whatever dtype, and the raw stream is what Triton itself
    # would look up with the current device, in 1.5 us more.
    launch, index = functools.partial(compiled.run, programs, 1, 1), device.index
    function, metadata = compiled.function, compiled.packed_metadata
    raw_stream, empty = torch._C._cuda_getCurrentRawStream, _empty_strided_cuda

    def call_with_addresses(
        *inputs: torch.Tensor, outputs: Sequence[torch.Tensor] | None = None
    ) -> Any:
        if copy:
            inputs = tuple(t.contiguous() for t in inputs)
        if outputs is None:
            outputs = allocate(specs, device) if empty is None else [empty(*spec) for spec in specs]
        addresses = [t.data_ptr() for t in outputs]
        if repeats > 1:
            addresses *= repeats
        for t in reversed(inputs):
            addresses.insert(0, t.data_ptr())
        enter, leave = knobs.launch_enter_hook, knobs.launch_exit_hook
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):  # a profiler listens
            run(*addresses, *arguments, stream=raw_stream(index))
        else:
            launch(raw_stream(index), function, metadata, None, None, None, *addresses, *arguments)
        return outputs[0] if single else outputs

    return _on_device(call_with_addresses, device)


def _on_device(call: Plan, device: torch.device) -> Plan:
    if _device_count(device.type) == 1:  # 1.7 us less than asking for the current device
        return call

    def call_on_device(*inputs: torch.Tensor, **options: Any) -> Any:
        with guard(device):
            return call(*inputs, **options)

    return call_on_device


def allocate(specs: Sequence[Spec], device: torch.device) -> list[torch.Tensor]:
    """New uninitialised tensors."""
    return [torch.empty_strided(*s, dtype=d, device=device) for *s, d in specs]


# Allocation on the current device in code that Inductor generates: 1.4 us where torch.empty_strided
# takes 2.5. Private.
_empty_strided_cuda = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)


def _key(operation: str, args: Sequence[torch.Tensor], kwargs: dict[str, Any]) -> Hashable:
    first = args[0]
    signature = (first.device, first.dtype, first.shape, first.stride(), first.data_ptr() & 15)
    # Device and dtype of each: a replayed call is not checked, and a kernel believes its pointers.
    more = [(t.device, t.dtype, t.shape, t.stride(), t.data_ptr() & 15) for t in args[1:]]
    return (operation, *signature, *more, *kwargs.items())


def replay(operation: str, *args: torch.Tensor, **kwargs: Any) -> Any:
    """Serve a call whose like was served before, and hence checked; None where there was none."""
    try:
        plan = _plans.get(_key(operation, args, kwargs))
    except (AttributeError, RuntimeError):  # no tensor, or one without strides: the check says so
        return None
    return None if plan is None else plan(*args)


def serve(make: Callable[[], Plan], operation: str, *args: torch.Tensor, **kwargs: Any) -> Any:
    """Serve a call, with the plan of an earlier one like it or with that of ``make``."""
    key = _key(operation, args, kwargs)
    plan = _plans.get(key)
    if plan is None:
        with guard(args[0].device):
            plan = make()
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        _plans[key] = plan
    return plan(*args)
