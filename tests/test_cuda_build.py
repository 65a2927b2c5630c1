"""The CUDA library without a GPU: it builds, loads beside any torch, and its machine code is right."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cases import run_python

from mxfp8_ops.backends.cuda import arch_reason

ROOT = Path(__file__).resolve().parent.parent
ARCHS = ("80", "89", "90", "100", "120")


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """The library for all default architectures, about 30 s on two cores."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("nvcc was not found, and the library is compiled by it")
    folder = tmp_path_factory.mktemp("cuda")
    done = subprocess.run(
        [
            sys.executable,
            "setup.py",
            "-q",
            "build_ext",
            f"--build-lib={folder}",
            f"--build-temp={folder}",
        ],
        cwd=ROOT,
        env={**os.environ, "MXFP8_OPS_CUDA": "1", "MXFP8_OPS_CUDA_ARCHS": ";".join(ARCHS)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "mxfp8_ops/_lib/libmxfp8_cuda.so"


def cuobjdump(library: Path, *arguments: str) -> str:
    tool = shutil.which("cuobjdump")
    if tool is None:
        triton = pytest.importorskip(
            "triton", reason="cuobjdump comes with the CUDA toolkit or Triton"
        )
        tool = str(Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump")
    return subprocess.run(
        [tool, *arguments, str(library)], capture_output=True, text=True, check=True
    ).stdout


def test_loads_beside_any_torch_and_registers_its_kernels(library):
    done = run_python(f"""
import pathlib, torch
from mxfp8_ops import native
native._DIRECTORY = pathlib.Path({str(library.parent)!r})
native.load_error.cache_clear(), native.library.cache_clear()
assert native.load_error("cuda") is None, native.load_error("cuda")
from mxfp8_ops.backends.cuda import compiled_archs
has = torch._C._dispatch_has_kernel_for_dispatch_key
names = ("quantize", "quantize_columnwise", "quantize_both", "dequantize")
print(compiled_archs(), all(has(f"mxfp8::{{n}}_cuda", "CUDA") for n in names))
assert not torch.cuda.is_initialized()
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "((8, 0), (8, 9), (9, 0), (10, 0), (12, 0)) True"


@pytest.mark.parametrize("arch", ARCHS)
def test_every_architecture_is_in_the_library(library, arch):
    assert f"sm_{arch}.cubin" in cuobjdump(library, "--list-elf")


def test_ptx_of_the_newest_architecture_is_in_the_library(library):
    assert f"sm_{ARCHS[-1]}.ptx" in cuobjdump(library, "--list-ptx")


@pytest.mark.parametrize("arch", ["89", "90", "100", "120"])
def test_machine_code(library, arch):
    """Hardware conversion, 16-byte loads and stores, and no local memory."""
    code = cuobjdump(library, "-sass", "-arch", f"sm_{arch}")
    for pattern in (
        r"F2FP\.SATFINITE\.E4M3\.F32",
        r"F2FP\.SATFINITE\.E5M2\.F32",
        r"LDG\.E\.128",
        r"STG\.E\.128",
    ):
        assert re.search(pattern, code), pattern
    assert not re.search(r"\b(LDL|STL)\b", code), "registers were spilled"
    assert not re.search(r"\bMUFU\.(EX2|LG2|RCP)\b", code), (
        "exponents must come from integer fields"
    )


@pytest.mark.parametrize(
    ("capability", "compiled", "reason"),
    [
        ((9, 0), ("80", "90"), None),
        ((8, 6), ("80", "90"), None),
        ((12, 0), ("80", "90"), None),  # by PTX
        ((8, 0), ("90",), "was compiled for compute capability 9.0 and the device has 8.0"),
        ((7, 5), ("80",), "needs compute capability 8.0 or newer, found 7.5"),
    ],
)
def test_reason_for_architectures_that_were_left_out(capability, compiled, reason):
    archs = tuple((int(a[:-1]), int(a[-1])) for a in compiled)
    got = arch_reason(capability, archs)
    assert got is None if reason is None else reason in got
