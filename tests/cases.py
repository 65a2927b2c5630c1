"""Arguments that the tests share: backends of this machine, layouts, odd shapes and strides."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import mxfp8_ops
from mxfp8_ops.formats import SCALE_LAYOUTS, SCALING_MODES
from mxfp8_ops.ops import OPERATIONS

ROOT = Path(__file__).resolve().parent.parent
ELEMENTS = (torch.float8_e4m3fn, torch.float8_e5m2)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LAYOUTS = tuple(SCALE_LAYOUTS)
MODES = SCALING_MODES
CPU_BACKENDS = tuple(row.name for row in mxfp8_ops.backends("cpu") if row.reason is None)
HAS_NATIVE_CPU = "cpu" in CPU_BACKENDS
QUANTIZERS = ("quantize", "quantize_columnwise", "quantize_both")


def cpu_ops(operation: str) -> list[str | None]:
    """Backends whose op for ``operation`` runs on CPU, None being the dispatcher op."""
    return [None, *(b for b in OPERATIONS[operation].backends if b in CPU_BACKENDS)]


def strided_inputs(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Tensors that an op must read through their strides, M and K multiples of 32."""
    g = torch.Generator().manual_seed(3)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g).to(dtype)

    flat = randn(1 + 64 * 64)
    return {
        "contiguous": randn(64, 96),
        "transposed": randn(96, 64).t(),
        "dense permuted": randn(64, 32, 3).permute(2, 0, 1),
        "every second column": randn(32, 192)[:, ::2],
        "part of wider rows": randn(64, 160)[:, 32:96],
        "odd storage offset": flat[1:].view(64, 64),
        "expanded rows": randn(1, 64).expand(32, 64),
        "expanded batch": randn(32, 64).expand(3, 32, 64),
        "every second row": randn(64, 64)[::2],
        "one row": randn(32, 64)[:1].expand(32, 64),
    }


def python_environment(**environment: str) -> dict[str, str]:
    """Environment of an interpreter that sees this checkout, and no setting of ours but the given."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("MXFP8_OPS_")}
    return {**env, **environment, "PYTHONPATH": str(ROOT)}


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter that sees this checkout."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=python_environment(**environment),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )


def check_python(code: str, **environment: str) -> str:
    """Output of ``code`` in a fresh interpreter, which must succeed."""
    done = run_python(code, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def load_setup() -> ModuleType:
    """The functions of setup.py."""
    spec = importlib.util.spec_from_file_location("mxfp8_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setuptools.setup", lambda **_: None)
        spec.loader.exec_module(module)
    return module
