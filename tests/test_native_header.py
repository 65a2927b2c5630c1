"""The headers that all native code shares, by C++ programs that need neither torch nor a GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("mxfp8_test", "cuda_arithmetic_test")
CXX = shutil.which("g++") or shutil.which("c++")
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
WARNINGS = ("-Wall", "-Wextra", "-Werror")
FLAGS = {
    "optimised": ("-O2", *WARNINGS),
    "sanitised": ("-O1", *WARNINGS, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
}


def build_and_run(program: str, folder: Path, *compiler: str) -> None:
    source, binary = ROOT / f"tests/native/{program}.cpp", folder / program
    command = [*compiler, "-std=c++17", f"-I{ROOT / 'csrc'}", str(source), "-o", str(binary)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-4000:]
    done = subprocess.run([str(binary)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    count, rest = done.stdout.split(" ", 1)
    assert int(count) > 1_000_000
    assert rest == "checks, 0 failures\n"


@pytest.mark.skipif(CXX is None, reason="no C++ compiler was found")
@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program, flags, tmp_path):
    build_and_run(program, tmp_path, CXX, "-ffp-contract=off", *FLAGS[flags])


@pytest.mark.skipif(NVCC is None, reason="nvcc was not found")
@pytest.mark.parametrize("program", PROGRAMS)
def test_program_as_cuda_code(program, tmp_path):
    """The same answers from the host half of what nvcc makes of the headers."""
    build_and_run(program, tmp_path, NVCC, "-x", "cu", "-O2", "--expt-relaxed-constexpr")
