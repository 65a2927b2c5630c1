"""Every instruction set of the native CPU library: bytes, memory accesses, choice."""

from __future__ import annotations

import functools
import itertools
import shutil
import subprocess
import sys

import pytest
import torch
from cases import (
    DTYPES,
    ELEMENTS,
    HAS_NATIVE_CPU,
    LAYOUTS,
    MODES,
    QUANTIZERS,
    ROOT,
    check_python,
    python_environment,
    strided_inputs,
)
from cpu_raw import ISAS, available_isas, current_isa, set_isa, using_isa

from mxfp8_ops import native, reference, testing
from mxfp8_ops.ops import OPERATIONS

pytestmark = pytest.mark.skipif(
    not HAS_NATIVE_CPU, reason=f"no native CPU library: {native.load_error('cpu')}"
)
AVAILABLE = available_isas() if HAS_NATIVE_CPU else ()


@pytest.fixture(params=ISAS)
def isa(request):
    if request.param not in AVAILABLE:
        pytest.skip(f"this processor has no {request.param}")
    with using_isa(request.param):
        yield request.param


@functools.cache
def blocks(dtype: torch.dtype) -> torch.Tensor:
    """Adversarial blocks as a matrix whose rows and columns end in the middle of a tile."""
    x = testing.adversarial_blocks(dtype, random=1500)
    return x[: x.shape[0] // 160 * 160].reshape(-1, 160)


@functools.cache
def expected(operation: str, dtype: torch.dtype, *options: tuple[str, object]):
    return getattr(reference, operation)(blocks(dtype), **dict(options))


def native_op(operation: str):
    return OPERATIONS[operation].op("cpu")


@pytest.mark.parametrize("operation", QUANTIZERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_adversarial_blocks(dtype, operation, isa):
    for element, mode in itertools.product(ELEMENTS, MODES):
        options = (("dtype", element), ("scaling_mode", mode), ("alignment", 32))
        testing.assert_same_bytes(
            native_op(operation)(blocks(dtype), **dict(options)),
            expected(operation, dtype, *options),
            f"{isa}: {options}",
        )


@pytest.mark.parametrize("operation", QUANTIZERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_strides(layout, operation, isa):
    for dtype in DTYPES:
        for name, x in strided_inputs(dtype).items():
            testing.assert_same_bytes(
                native_op(operation)(x, scale_layout=layout),
                getattr(reference, operation)(x.clone(), scale_layout=layout),
                f"{isa}: {name} {dtype}",
            )


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_dequantize_every_code_under_every_scale(element, isa):
    codes = torch.arange(256, dtype=torch.uint8)
    data = codes.repeat(256, 1).view(element)
    scale = codes.unsqueeze(1).repeat(1, 8).view(torch.float8_e8m0fnu)
    for dtype, layout in itertools.product(DTYPES, LAYOUTS):
        tiles = reference.swizzle_scale(scale, layout)
        testing.assert_same_bytes(
            native_op("dequantize")(data, tiles, dtype=dtype, scale_layout=layout),
            reference.dequantize(data, scale, dtype=dtype),
            f"{isa}: {dtype} {layout}",
        )


def run_between_guard_pages(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/cpu_guard_pages.py"), *arguments],
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    # A negative code is a signal: a page that nobody may touch was touched.
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    assert int(done.stdout.split()[0]) > 1000


def test_memory_accesses_between_guard_pages(isa):
    run_between_guard_pages(isa)


@pytest.mark.skipif("avx2" not in AVAILABLE, reason="the emulation of AVX-512 needs AVX2")
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ was not found")
def test_avx512_kernels_by_emulation(tmp_path):
    """Their bytes and memory accesses on a processor without AVX-512, intrinsics being functions."""
    sources = [
        *((ROOT / "csrc/cpu" / f"{n}.cpp") for n in ("c_api", "quantize", "dequantize", "storage")),
        ROOT / "tests/native/only_avx512.cpp",
    ]
    flags = ["-std=c++17", "-O2", "-fPIC", "-ffp-contract=off", "-Wno-psabi", f"-I{ROOT / 'csrc'}"]
    kernels, library = str(tmp_path / "kernels.o"), str(tmp_path / "libemulated.so")
    emulation = ["-mavx2", "-mf16c", "-include", str(ROOT / "tests/native/emulated_avx512.h")]
    source = str(ROOT / "csrc/cpu/kernels_avx512.cpp")
    for command in (
        ["g++", *flags, *emulation, "-c", source, "-o", kernels],
        ["g++", *flags, "-shared", *map(str, sources), kernels, "-o", library],
    ):
        built = subprocess.run(command, capture_output=True, text=True)
        assert built.returncode == 0, built.stderr[-4000:]
    run_between_guard_pages("avx512", library)


def test_guard_pages_stop_an_access():
    """The method itself: one byte beyond either end ends the process."""
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "import ctypes; from cpu_raw import Guarded\n"
        "g = Guarded(100, {at_end}); print('before', flush=True)\n"
        "ctypes.memset(g.address {offset}, 0, 1); print('after')\n"
    )
    for at_end, offset in ((True, "+ 100"), (False, "- 1")):
        done = subprocess.run(
            [sys.executable, "-c", code.format(at_end=at_end, offset=offset)],
            env=python_environment(),
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.stdout.strip() == "before"
        assert done.returncode < 0


def test_an_unknown_instruction_set_is_refused_and_changes_nothing():
    before = current_isa()
    assert not set_isa("avx1024")
    assert not set_isa("")
    assert current_isa() == before == AVAILABLE[0]


@pytest.mark.parametrize("name", [*AVAILABLE, "avx1024", ""])
def test_environment_names_the_instruction_set(name):
    code = "import sys; sys.path.insert(0, 'tests'); import cpu_raw; print(cpu_raw.current_isa())"
    chosen = check_python(code, MXFP8_OPS_CPU_ISA=name).strip()
    assert chosen == (name if name in AVAILABLE else AVAILABLE[0])


def test_a_result_that_does_not_fit_is_an_error_with_the_words_of_torch():
    with pytest.raises(RuntimeError, match=r"could not be allocated: .*memory"):
        torch.ops.mxfp8.quantize_cpu(torch.ones(1, 32), alignment=1 << 60)
