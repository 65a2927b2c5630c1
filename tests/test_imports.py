"""Importing the package is free, safe and repeatable."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mxfp8_ops import __version__

ROOT = Path(__file__).parents[1]
OPTIONAL = (
    "triton",
    "flashinfer",
    "cutlass",
    "torchao",
    "vllm_xpu_kernels",
    "intel_extension_for_pytorch",
    "ml_dtypes",
    "rich",
    "safetensors",
    "matplotlib",
)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        timeout=300,
    )


@pytest.mark.parametrize(
    "error", ["ImportError", "RuntimeError", "AssertionError", "FileNotFoundError"]
)
def test_nothing_optional_is_imported_and_no_device_touched(error):
    result = run(
        f"""
        import sys
        import torch
        already = set(sys.modules)

        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {OPTIONAL!r} and name not in already:
                    raise {error}(f"{{name}} must not be imported")

        sys.meta_path.insert(0, Refuse())
        import mxfp8_ops
        data, scale = torch.ops.mxfp8.quantize(torch.randn(4, 64))
        new = set(sys.modules) - already
        assert not [m for m in new if m.split(".")[0] in {OPTIONAL!r}], new
        assert not torch.cuda.is_initialized()
        assert "torch.distributed.tensor" not in new
        print("fine", scale.shape)
        """
    )
    assert result.returncode == 0, result.stderr
    assert "fine torch.Size([4, 2])" in result.stdout


def test_reload_and_second_copy():
    result = run(
        """
        import importlib, sys, torch
        import mxfp8_ops
        x = torch.randn(4, 64)
        before = mxfp8_ops.quantize(x)[0].view(torch.uint8)
        for name in sorted(m for m in sys.modules if m.split(".")[0] == "mxfp8_ops"):
            importlib.reload(sys.modules[name])
        assert torch.equal(mxfp8_ops.quantize(x)[0].view(torch.uint8), before)
        for name in [m for m in sys.modules if m.split(".")[0] == "mxfp8_ops"]:
            del sys.modules[name]
        import gc
        gc.collect()
        import mxfp8_ops as second
        assert second is not mxfp8_ops
        del mxfp8_ops
        gc.collect()
        assert torch.equal(second.quantize(x)[0].view(torch.uint8), before)
        torch.compile(torch.ops.mxfp8.quantize, backend="eager", fullgraph=True)(x)
        torch.vmap(torch.ops.mxfp8.quantize)(x.unsqueeze(0))
        print("fine")
        """
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "fine"


def test_a_vendored_copy_shares_ops_libraries_and_errors(tmp_path):
    shutil.copytree(ROOT / "mxfp8_ops", tmp_path / "vendored")
    result = run(
        f"""
        import sys, torch
        import mxfp8_ops
        sys.path.insert(0, {str(tmp_path)!r})
        import vendored
        assert vendored.native._DIRECTORY == mxfp8_ops.native._DIRECTORY
        x = torch.randn(4, 64)
        for mine, other in zip(mxfp8_ops.quantize(x), vendored.quantize(x)):
            assert torch.equal(mine.view(torch.uint8), other.view(torch.uint8))
        try:
            vendored.quantize(x, backend="cuda")
        except vendored.BackendUnavailableError:
            print("fine")
        """
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "fine"
    assert "Overriding" not in result.stderr


def test_two_versions_in_one_process_are_an_import_error(tmp_path):
    copy = shutil.copytree(ROOT / "mxfp8_ops", tmp_path / "newer")
    (copy / "_version.py").write_text('__version__ = "9.0"\n')
    ops = (copy / "ops.py").read_text()
    (copy / "ops.py").write_text(ops.replace('str scaling_mode="rceil"', 'str mode="rceil"'))
    assert (copy / "ops.py").read_text() != ops
    result = run(f"import sys, mxfp8_ops; sys.path.insert(0, {str(tmp_path)!r}); import newer")
    assert "ImportError: two versions of mxfp8_ops in one process" in result.stderr
    assert f"of {__version__}, which was imported first, is not that of 9.0" in result.stderr


def test_first_call_in_a_process_may_be_compiled():
    result = run(
        """
        import torch, mxfp8_ops
        f = torch.compile(lambda x: torch.ops.mxfp8.quantize(x, scale_layout="swizzled_8x4"), fullgraph=True)
        print(f(torch.randn(3, 64))[1].shape)
        """
    )
    assert result.returncode == 0, result.stderr
    assert "[8, 4]" in result.stdout


def lint(package: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts/lint_imports.py"), str(package)],
        capture_output=True,
        text=True,
    )


def test_floors_are_kept():
    result = lint(ROOT / "mxfp8_ops")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("formats.py", "from . import reference", "higher floor"),
        ("ops.py", "from .dispatch import BACKENDS", "higher floor"),
        ("backends/cpu.py", "from .xpu import BACKEND as X", "sibling"),
        ("backends/cpu.py", "from mxfp8_ops.backends import xpu", "sibling"),
        ("backends/triton.py", "import triton", "inside a function"),
        ("api.py", "import flashinfer", "inside a function"),
    ],
)
def test_floors_lint_sees_a_violation(tmp_path, file, line, complaint):
    package = tmp_path / "mxfp8_ops"
    for source in (ROOT / "mxfp8_ops").rglob("*.py"):
        target = package / source.relative_to(ROOT / "mxfp8_ops")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text())
    (package / file).write_text((package / file).read_text() + f"\n{line}\n")
    result = lint(package)
    assert result.returncode == 1
    assert complaint in result.stdout
