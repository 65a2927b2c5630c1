"""The CUDA kernels, as C++ with the threads of a block as fibers, give the reference's bytes without a GPU.

Instructions that only a GPU has are the plain C++ beside them: this proves indices, edges, layouts, shuffles,
barriers, alignment of vectors and bounds, not the conversions of the hardware.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cases import ROOT, python_environment

CXX = shutil.which("g++")
FAKE = ROOT / "tests/native/cuda_on_cpu"
FLAGS = (
    *("-std=c++17", "-O1", "-fPIC", "-ffp-contract=off", f"-I{FAKE}", f"-I{ROOT / 'csrc'}"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"),
    # A vector access that is not aligned faults on a GPU, and not here.
    *("-fsanitize=alignment,bounds", "-fno-sanitize-recover=all"),
)


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, **options)


def build(folder: Path, *defines: str) -> Path:
    def compiled(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        done = run(CXX, *FLAGS, *defines, "-x", "c++", "-c", source, "-o", target)
        assert done.returncode == 0, done.stderr[-4000:]
        return target

    sources = [*sorted((ROOT / "csrc/cuda").glob("*.cu")), FAKE / "c_api.cpp"]
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, sources))
    library = folder / "libmxfp8_cuda_on_cpu.so"
    done = run(CXX, "-shared", "-fsanitize=alignment,bounds", *objects, "-o", library)
    assert done.returncode == 0, done.stderr[-4000:]
    return library


def call(library: Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "tests/cuda_on_cpu.py"
    return run(sys.executable, script, library, env=python_environment(), timeout=900)


@pytest.mark.skipif(CXX is None, reason="g++ was not found")
def test_every_byte_between_guard_pages(tmp_path):
    done = call(build(tmp_path))
    # A negative code is a signal: a page that nobody may touch was touched.
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr[-4000:]}"
    assert done.stdout == "3330 calls\n"


@pytest.mark.skipif(CXX is None, reason="g++ was not found")
def test_a_missing_barrier_shows(tmp_path):
    """The method itself."""
    done = call(build(tmp_path, "-DMXFP8_NO_BARRIERS"))
    assert done.returncode == 1
    assert "differs at byte" in done.stderr
