"""The CUDA library without a GPU: it builds, loads beside any torch, and its machine code is right."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cases import load_setup, run_python

from mxfp8_ops.backends.cuda import arch_reason, driver_reason

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
    assert done.stdout.strip() == f"{ARCHS} True"


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


@pytest.mark.parametrize("arch", ["90", "100", "120"])
def test_no_memory_is_touched_before_the_previous_kernel_has_ended(library, arch):
    """Of programmatic dependent launch: the wait, then the trigger, then loads that see new data."""
    code = cuobjdump(library, "-sass", "-arch", f"sm_{arch}")
    assert "CONSTANT" not in code, "a load through the read-only cache may see old data"
    functions = code.split("Function : ")[1:]
    assert len(functions) == 48
    for function in functions:
        order = re.findall(r"\b(ACQBULK|PREEXIT|LDG|STG|ATOM|RED)\b", function)
        assert order[:2] == ["ACQBULK", "PREEXIT"], function.split("\n")[0]


@pytest.mark.parametrize(
    ("capability", "compiled", "reason"),
    [
        ((9, 0), ("80", "90"), None),
        ((8, 6), ("80", "90"), None),
        ((12, 0), ("80", "90"), None),  # by PTX
        ((8, 0), ("90",), "was compiled for compute capability 9.0 and the device has 8.0"),
        ((7, 5), ("80",), "needs compute capability 8.0 or newer, found 7.5"),
        ((9, 0), ("90a",), None),
        ((10, 0), ("90a",), "was compiled for compute capability 9.0a and the device has 10.0"),
        ((10, 3), ("100a",), "compute capability 10.0a and the device has 10.3"),
        ((10, 3), ("100f",), None),
        ((12, 0), ("80", "100f"), "compute capability 8.0, 10.0f and the device has 12.0"),
        ((12, 1), ("120", "90a"), None),
        ((8, 7), ("80", "90"), "compute capability 8.0, 9.0 and the device has 8.7"),
        ((8, 7), ("87",), None),
        ((8, 9), ("87", "90"), "compute capability 8.7, 9.0 and the device has 8.9"),
        ((8, 7), ("80",), None),  # by PTX
        ((10, 1), ("100", "120"), "and the device has 10.1"),
    ],
)
def test_reason_for_architectures_that_were_left_out(capability, compiled, reason):
    got = arch_reason(capability, compiled)
    assert got is None if reason is None else reason in got


@pytest.mark.parametrize(
    ("driver", "runtime", "reason"),
    [
        (13000, 13000, None),
        (13000, 13010, None),
        (13010, 12080, None),
        (12090, 13000, "was built with CUDA 13.0 and the driver knows 12.9"),
        (0, 12080, "was built with CUDA 12.8 and the driver knows 0.0"),
    ],
)
def test_reason_for_drivers_that_are_too_old(driver, runtime, reason):
    got = driver_reason(driver, runtime)
    assert got is None if reason is None else reason in got


def test_the_library_tells_the_versions_of_cuda(library):
    done = run_python(f"""
import ctypes, torch
library = ctypes.CDLL({str(library)!r})
print(library.mxfp8_cuda_driver_version(), library.mxfp8_cuda_runtime_version())
assert not torch.cuda.is_initialized()
""")
    assert done.returncode == 0, done.stderr
    driver, runtime = map(int, done.stdout.split())
    assert driver >= 0
    assert runtime >= 11080


@pytest.mark.parametrize(
    ("chosen", "listed", "archs"),
    [
        (None, "compute_80 compute_89 compute_90 compute_100 compute_120", [*ARCHS]),
        (None, "compute_80 compute_89 compute_90 compute_90a", ["80", "89", "90"]),  # CUDA 12.6
        (None, "", [*ARCHS]),  # an nvcc that does not tell
        ("90a,100", "compute_80", ["90a", "100"]),  # what is asked for is not changed
    ],
)
def test_default_architectures_are_those_that_nvcc_knows(
    monkeypatch, tmp_path, chosen, listed, archs
):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f"#!/bin/sh\nprintf '%s\\n' {listed}\n")
    nvcc.chmod(0o755)
    if chosen is None:
        monkeypatch.delenv("MXFP8_OPS_CUDA_ARCHS", raising=False)
    else:
        monkeypatch.setenv("MXFP8_OPS_CUDA_ARCHS", chosen)
    assert load_setup().cuda_archs(str(nvcc)) == archs
