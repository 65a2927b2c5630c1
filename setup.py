"""Builds the native libraries of mxfp8_ops; all other metadata is in pyproject.toml.

MXFP8_OPS_NATIVE=auto (default) builds what this machine can build and says what it leaves out,
=1 makes a missing CPU library an error, =0 installs pure Python.
MXFP8_OPS_CUDA=auto|0|1 does the same for the CUDA library; MXFP8_OPS_CUDA_ARCHS names its
architectures (default "80;89;90;100;120" as far as nvcc knows them, PTX for the last).
MXFP8_OPS_XPU=auto|0|1 does the same for the XPU library, which is built where torch drives Intel GPUs
and SYCL's headers are found: in the Python environment (package intel-sycl-rt) or in CMPLR_ROOT (oneAPI).

The libraries use torch's stable ABI and no Python.h, so one build serves every Python and torch >= 2.11.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
NATIVE = os.environ.get("MXFP8_OPS_NATIVE", "auto").lower()
CUDA = os.environ.get("MXFP8_OPS_CUDA", "auto").lower()
XPU = os.environ.get("MXFP8_OPS_XPU", "auto").lower()
DEFAULT_CUDA_ARCHS = ("80", "89", "90", "100", "120")

# torch 2.11: the first whose stable ABI knows float8_e8m0fnu.
COMMON_FLAGS = [
    "-std=c++17",
    "-O3",
    "-DTORCH_TARGET_VERSION=0x020b000000000000",
    f"-I{ROOT / 'csrc'}",
    "-D__libc_single_threaded=mxfp8_single_threaded",  # see csrc/old_systems.cpp
]
# By file name; the choice among them is made at run time.
ISA_FLAGS = {
    "avx512": [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx512vbmi",
        "-mprefer-vector-width=512",
        # GCC 11 and 12 warn thousands of times of their own header (GCC bug 105593).
        "-Wno-maybe-uninitialized",
    ],
    "avx2": ["-mavx2", "-mf16c", "-mfma"],
}


def torch_directory() -> Path | None:
    try:
        import torch
    except ImportError:
        return None
    return Path(torch.__file__).parent


def torch_flags(directory: Path) -> tuple[list[str], list[str]]:
    include = directory / "include"
    compile_flags = [f"-isystem{include}", f"-isystem{include / 'torch/csrc/api/include'}"]
    return compile_flags, [f"-L{directory / 'lib'}", "-ltorch_cpu"]


def find_nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME")
    candidate = shutil.which("nvcc", path=str(Path(home) / "bin")) if home else None
    return candidate or shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def cuda_archs(nvcc: str) -> list[str]:
    """What MXFP8_OPS_CUDA_ARCHS names; by default those that this nvcc knows (100 and 120 since 12.8)."""
    chosen = os.environ.get("MXFP8_OPS_CUDA_ARCHS")
    if chosen:
        return chosen.replace(",", ";").split(";")
    done = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=False)
    known = [arch for arch in DEFAULT_CUDA_ARCHS if f"compute_{arch}" in done.stdout.split()]
    return known or list(DEFAULT_CUDA_ARCHS)


def find_cxx() -> str | None:
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")


def find_sycl() -> Path | None:
    """Prefix of SYCL's headers and runtime: the one that torch uses before an installed oneAPI."""
    # Where pip puts a package's data: below sys.prefix, but not for Debian's Python or pip --user.
    data = [sysconfig.get_path("data"), sysconfig.get_path("data", f"{os.name}_user")]
    prefixes = [Path(p) for p in (sys.prefix, *data, os.environ.get("CMPLR_ROOT")) if p]
    return next((p for p in prefixes if (p / "include/sycl/sycl.hpp").exists()), None)


def sources_of(name: str, pattern: str) -> list[Path]:
    """Files to compile for the library ``name``; the one that all share counts as C++."""
    shared = [ROOT / "csrc/old_systems.cpp"] if pattern == "*.cpp" else []
    return [*shared, *sorted((ROOT / "csrc" / name).glob(pattern))]


def cpu_commands(output: Path, work: Path) -> tuple[list[list[str]], list[str]]:
    compiler = find_cxx()
    directory = torch_directory()
    assert compiler is not None
    assert directory is not None
    include_flags, link_flags = torch_flags(directory)
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    # Contracting a * b + c would round once where the contract rounds twice.
    flags = [*COMMON_FLAGS, "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra"]
    # Error messages name source files: the same bytes wherever the source lies.
    flags += [f"-ffile-prefix-map={ROOT}=.", f"-ffile-prefix-map={directory}=torch"]
    commands, objects = [], []
    for source in sources_of("cpu", "*.cpp"):
        isa = next((name for name in ISA_FLAGS if source.stem.endswith(f"_{name}")), None)
        if isa and not x86:
            continue
        target = work / f"cpu_{source.stem}.o"
        isa_flags = ISA_FLAGS[isa] if isa else []
        commands.append(
            [compiler, *flags, *isa_flags, *include_flags, "-c", str(source), "-o", str(target)]
        )
        objects.append(str(target))
    return commands, [compiler, "-shared", "-s", *objects, "-o", str(output), *link_flags]


def cuda_commands(output: Path, work: Path) -> tuple[list[list[str]], list[str]]:
    nvcc = find_nvcc()
    directory = torch_directory()
    assert nvcc is not None
    assert directory is not None
    include_flags, link_flags = torch_flags(directory)
    include_flags = [flag.replace("-isystem", "-I") for flag in include_flags]
    archs = cuda_archs(nvcc)
    codes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
    codes.append(f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}")
    flags = [
        *COMMON_FLAGS,
        *codes,
        f"-DMXFP8_CUDA_ARCHS={'_'.join(archs)}",  # nvcc splits its options at commas
        "-fmad=false",
        "-DUSE_CUDA",
        "-Xcompiler",
        "-fPIC,-fvisibility=hidden",
        "--expt-relaxed-constexpr",
        "-w",
    ]
    commands, objects = [], []
    for source in (*sources_of("cuda", "*.cpp"), *sources_of("cuda", "*.cu")):
        target = work / f"cuda_{source.stem}.o"
        commands.append([nvcc, *flags, *include_flags, "-c", str(source), "-o", str(target)])
        objects.append(str(target))
    # The static runtime finds the driver at load time, so the library loads on machines without one.
    link_flags = [*codes[:1], *objects, "-o", str(output), *link_flags, "-ldl"]
    return commands, [nvcc, "-shared", "-cudart=static", *link_flags]


def xpu_commands(output: Path, work: Path) -> tuple[list[list[str]], list[str]]:
    compiler, sycl = find_cxx(), find_sycl()
    directory = torch_directory()
    assert compiler is not None
    assert sycl is not None
    assert directory is not None
    include_flags, link_flags = torch_flags(directory)
    flags = [*COMMON_FLAGS, "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", *include_flags]
    # The assembler embeds the kernels' source, which SYCL's runtime compiles for the GPU that it finds.
    flags += [f"-isystem{sycl / 'include'}", f"-Wa,-I{ROOT / 'csrc'}"]
    commands, objects = [], []
    for source in sources_of("xpu", "*.cpp"):
        target = work / f"xpu_{source.stem}.o"
        commands.append([compiler, *flags, "-c", str(source), "-o", str(target)])
        objects.append(str(target))
    link_flags += ["-ltorch_xpu", f"-L{sycl / 'lib'}", "-lsycl"]
    return commands, [compiler, "-shared", "-s", *objects, "-o", str(output), *link_flags]


def has_xpu_torch() -> bool:
    import torch

    return torch._C._has_xpu


LIBRARIES = {"cpu": cpu_commands, "cuda": cuda_commands, "xpu": xpu_commands}
SWITCHES = {"cpu": NATIVE, "cuda": CUDA, "xpu": XPU}


def reason_not_built(name: str) -> str | None:
    """Why this machine does not build the library ``name``, or None."""
    if NATIVE == "0" or SWITCHES[name] == "0":
        return "it was switched off"
    if not any((ROOT / "csrc" / name).glob("*.c*")):
        return "its sources are not part of this package"
    if torch_directory() is None:
        return "torch cannot be imported by the build (install torch first, then use --no-build-isolation)"
    if name == "xpu" and not has_xpu_torch():
        return "this torch was not built for Intel GPUs"
    if name == "xpu" and find_sycl() is None:
        return "no SYCL headers were found, neither in this environment (intel-sycl-rt) nor in CMPLR_ROOT"
    if name != "cuda" and find_cxx() is None:
        return "no C++ compiler was found"
    if name == "cuda" and find_nvcc() is None:
        return "nvcc was not found"
    return None


class BuildNative(build_ext):
    """Compiles each library with plain compiler calls into ``mxfp8_ops/_lib``."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        name = ext.name.removeprefix("mxfp8_ops._lib.libmxfp8_")
        output = Path(self.get_ext_fullpath(ext.name)).resolve()
        work = Path(self.build_temp).resolve()
        output.parent.mkdir(parents=True, exist_ok=True)
        work.mkdir(parents=True, exist_ok=True)
        try:
            commands, link = LIBRARIES[name](output, work)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(self._run, commands))
            self._run(link)
        except (OSError, subprocess.CalledProcessError) as error:
            if is_required(name):
                raise
            say(f"the native {name} library was not built: {error}")

    def _run(self, command: list[str]) -> None:
        print(" ".join(command), flush=True)
        subprocess.run(command, check=True)

    def copy_extensions_to_source(self) -> None:
        # setuptools asks for this in place and in editable installs; versions differ in where they
        # look for the result, and a library that was not built is not an error here.
        for extension in self.extensions:
            file = self.get_ext_filename(extension.name)
            built, target = Path(self.build_lib, file), ROOT / file
            if built.exists() and built.resolve() != target.resolve():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(built, target)


class PlatformWheel(bdist_wheel):
    """One wheel for every Python: the libraries know nothing of it."""

    def get_tag(self) -> tuple[str, str, str]:
        tag = super().get_tag()
        return tag if self.root_is_pure else ("py3", "none", tag[2])


def is_required(name: str) -> bool:
    return SWITCHES[name] == "1"


def say(sentence: str) -> None:
    print(f"mxfp8_ops: {sentence}", file=sys.stderr, flush=True)


def extensions() -> list[Extension]:
    found = []
    for name in LIBRARIES:
        reason = reason_not_built(name)
        if reason is None:
            found.append(Extension(f"mxfp8_ops._lib.libmxfp8_{name}", sources=[]))
        elif is_required(name):
            raise SystemExit(f"mxfp8_ops: the native {name} library is required but {reason}")
        else:
            say(f"installing without the native {name} library: {reason}")
    return found


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
)
