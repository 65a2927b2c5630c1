"""A FlashInfer package that exists in memory only, with the API of any version of its history.

``mxfp8_quantize`` grew: 0.2.10 (input, is_sf_swizzled_layout); 0.2.11 + alignment; 0.2.11.post2
+ enable_pdl; 0.6.7 + backend, sf_swizzle_layout; 0.7.4 default backend "auto", + batch_invariant.
"""

from __future__ import annotations

import enum
import importlib.abc
import importlib.util
import re
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flashinfer_emulator import emulate

from mxfp8_ops import dispatch
from mxfp8_ops.backends import cute_dsl
from mxfp8_ops.ops import NAMESPACE, OPERATIONS


class SfLayout(enum.IntEnum):
    layout_128x4 = 0
    layout_8x4 = 1
    layout_linear = 2


class FlashInferStub(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``flashinfer`` for ``import``, and counts how often it is asked for and called.

    Args:
        version: FlashInfer version, or None where the package is not installed.
        cutlass: whether nvidia-cutlass-dsl is found.
        import_error: raised by ``import flashinfer``.
        kernels_error: raised by the import of the kernel module, as by a broken cutlass-dsl.
        compile_error: raised by a call, as by a compiler that fails.
        reports: its ``__version__``, where that is not ``version``.
    """

    def __init__(
        self,
        version: str | None,
        *,
        cutlass: bool = True,
        import_error: Exception | None = None,
        kernels_error: Exception | None = None,
        compile_error: Exception | None = None,
        reports: str | None = None,
    ) -> None:
        self.version = version
        self.number = tuple(int(n) for n in re.findall(r"\d+", version or "0")[:3])
        self.cutlass = cutlass
        self.import_error = import_error
        self.kernels_error = kernels_error
        self.compile_error = compile_error
        self.reports = reports or version
        self.imports = 0
        self.calls: list[dict[str, Any]] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] != "flashinfer":
            return None
        self.imports += name == "flashinfer"
        if self.version is None:
            raise ModuleNotFoundError("No module named 'flashinfer'", name="flashinfer")
        return importlib.util.spec_from_loader(name, self, is_package=True)

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "flashinfer":
            if self.import_error is not None:
                raise self.import_error
            module.__version__ = self.reports
            module.SfLayout = SfLayout
            function = self._mxfp8_quantize()
            if function is not None:
                module.mxfp8_quantize = function
        elif module.__name__ == "flashinfer.cute_dsl":
            module.is_cute_dsl_available = lambda: self.cutlass
        elif module.__name__.endswith("kernels.mxfp8_quantize") and self.kernels_error is not None:
            raise self.kernels_error

    def _mxfp8_quantize(self) -> Callable[..., Any] | None:
        run = self._run
        if self.number < (0, 2, 10):
            return None
        if self.number < (0, 2, 11):

            def mxfp8_quantize(input, is_sf_swizzled_layout=True):
                return run(input, "cuda", is_sf_swizzled_layout, None, 32)

        elif self.version == "0.2.11":

            def mxfp8_quantize(input, is_sf_swizzled_layout=True, alignment=32):
                return run(input, "cuda", is_sf_swizzled_layout, None, alignment)

        elif self.number < (0, 6, 7):

            def mxfp8_quantize(input, is_sf_swizzled_layout=True, alignment=32, enable_pdl=None):
                return run(input, "cuda", is_sf_swizzled_layout, None, alignment)

        elif self.number < (0, 7, 4):

            def mxfp8_quantize(
                input,
                is_sf_swizzled_layout=True,
                alignment=32,
                enable_pdl=None,
                backend="cuda",
                sf_swizzle_layout=None,
            ):
                return run(input, backend, is_sf_swizzled_layout, sf_swizzle_layout, alignment)

        else:

            def mxfp8_quantize(
                input,
                is_sf_swizzled_layout=True,
                alignment=32,
                enable_pdl=None,
                backend="auto",
                sf_swizzle_layout=None,
                *,
                batch_invariant=False,
            ):
                return run(input, backend, is_sf_swizzled_layout, sf_swizzle_layout, alignment)

        return mxfp8_quantize

    def _run(
        self, x: torch.Tensor, backend: str, swizzled: bool, layout: SfLayout | None, alignment: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.append({"shape": tuple(x.shape), "backend": backend, "alignment": alignment})
        if self.compile_error is not None:
            raise self.compile_error
        takes = [torch.float16, torch.bfloat16]
        if self.number >= (0, 7, 1):
            takes.append(torch.float32)
        assert backend == "cute-dsl", f"the cuda backend was called: {backend}"
        assert x.dtype in takes, f"Input dtype must be float16 or bfloat16, got {x.dtype}"
        assert not x.requires_grad
        assert x.shape[-1] % 32 == 0
        assert alignment % 32 == 0
        assert x.numel() > 0, "a launch with an empty grid"
        assert x.numel() < 1 << 31, "row offsets overflow"
        assert x.data_ptr() % (8 * x.element_size()) == 0, "misaligned address"
        if x.dim() == 1:
            raise ValueError("not enough values to unpack (expected 2, got 1)")
        if layout is None:
            layout = SfLayout.layout_128x4 if swizzled else SfLayout.layout_linear
        return emulate(x, layout.name, alignment, self.number)


# What each case of the fallback matrix installs, and words of the reason that the user must be shown.
BROKEN = {
    "absent": (FlashInferStub(None), "not installed"),
    "0.2.9": (FlashInferStub("0.2.9"), "has no mxfp8_quantize"),
    "0.2.10": (FlashInferStub("0.2.10"), "no backend argument"),
    "0.2.11": (FlashInferStub("0.2.11"), "no backend argument"),
    "0.2.11.post2": (FlashInferStub("0.2.11.post2"), "no backend argument"),
    "0.6.6": (FlashInferStub("0.6.6"), "no backend argument"),
    "0.6.7": (FlashInferStub("0.6.7"), "0.6.7 computes some scales wrongly"),
    "0.6.12": (FlashInferStub("0.6.12"), "0.6.12 computes some scales wrongly"),
    "0.6.13rc1": (FlashInferStub("0.6.13rc1"), "0.6.13rc1 computes some scales wrongly"),
    "unknown version": (
        FlashInferStub("0.7.2", reports="unknown"),
        "'unknown' of flashinfer is not",
    ),
    "no cutlass-dsl": (FlashInferStub("0.7.2", cutlass=False), "nvidia-cutlass-dsl"),
    "cutlass without CUDA libraries": (
        FlashInferStub("0.7.2", kernels_error=RuntimeError("No CTK flavor installed")),
        "RuntimeError: No CTK flavor installed",
    ),
    "cutlass without cuda-bindings": (
        FlashInferStub(
            "0.7.2", import_error=ModuleNotFoundError("No module named 'cuda'", name="cuda")
        ),
        "ModuleNotFoundError: No module named 'cuda'",
    ),
    "AssertionError": (
        FlashInferStub(
            "0.6.18", import_error=AssertionError("Torch not compiled with CUDA enabled")
        ),
        "AssertionError: Torch not compiled with CUDA enabled",
    ),
    "RuntimeError": (
        FlashInferStub("0.7.2", import_error=RuntimeError("flashinfer-cubin version mismatch")),
        "RuntimeError: flashinfer-cubin version mismatch",
    ),
    "FileNotFoundError": (
        FlashInferStub(
            "0.7.2", import_error=FileNotFoundError(2, "No such file", "/home/x/.cache")
        ),
        "FileNotFoundError",
    ),
    "kernel compile fails": (
        FlashInferStub("0.7.2", compile_error=RuntimeError("ptxas: unsupported target sm_999")),
        "failed with RuntimeError: ptxas: unsupported target sm_999",
    ),
}


def install(monkeypatch: pytest.MonkeyPatch, stub: FlashInferStub) -> None:
    """Put ``stub`` in front of ``import`` and let CPU tensors be those of a compute capability 10.0 GPU.

    Only the questions about the machine are answered differently; probe, choice and launch are real.
    """
    for name in [m for m in sys.modules if m.split(".")[0] == "flashinfer"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [stub, *sys.meta_path])
    monkeypatch.setattr(cute_dsl, "device_reason", lambda device: None)
    monkeypatch.setattr(cute_dsl, "capability", lambda device: (10, 0))
    monkeypatch.setattr(dispatch, "preference", lambda device: ("cute_dsl", "torch"))
    monkeypatch.setattr(dispatch, "_reasons", {})
    monkeypatch.setattr(dispatch, "_routes", {})
    stub.imports = 0
    stub.calls.clear()
    cute_dsl.quantizer.cache_clear()


def uninstall() -> None:
    """Forget the stub: its modules and what the probe found."""
    for name in [m for m in sys.modules if m.split(".")[0] == "flashinfer"]:
        del sys.modules[name]
    cute_dsl.quantizer.cache_clear()


def route_cpu_through_python() -> torch.library.Library:
    """Until the result is destroyed, ``torch.ops.mxfp8.quantize`` enters the dispatcher for CPU tensors.

    Where the native CPU library is built, its kernel is that of the op and no choice is made.
    """
    library = torch.library.Library(NAMESPACE, "IMPL")
    library.impl("quantize", dispatch._dispatcher_kernel(OPERATIONS["quantize"]), "CPU")
    return library
