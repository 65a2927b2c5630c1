"""Checks built wheels and what their native libraries ask of a system.

    python scripts/check_wheel.py WHEEL [WHEEL]

One wheel: its tag, its files and the symbols of its libraries. Two: also that they hold the same files.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "mxfp8_ops"
NEEDED = ("py.typed", "__main__.py", "cli/__init__.py", "benchmark/copy_kernels.py")
# Symbols with a version come from libc, libm, libgcc and libstdc++; of torch only the stable C interface
# may be used, which later versions keep.
STABLE_ABI = re.compile(r"(aoti_torch_|torch_)\w+")
WEAK = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__"}
# Of manylinux_2_28, for which torch's own wheels are built. nvcc's runtime asks for more (2.34 on Debian 12).
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
LIMITED = ("libmxfp8_cpu.so",)
SYSTEM_VERSION = re.compile(r"(GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)")


def undefined_symbols(library: Path) -> list[str]:
    """Names that the library takes from others, with their versions."""
    command = ["nm", "-D", "--undefined-only", str(library)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [line.split()[-1] for line in lines.splitlines() if line.strip()]


def foreign_symbols(library: Path) -> list[str]:
    """Undefined symbols that are neither of the system nor of torch's stable ABI."""
    return [
        name
        for name in undefined_symbols(library)
        if name not in WEAK
        and STABLE_ABI.fullmatch(name) is None
        and SYSTEM_VERSION.search(name.partition("@")[2]) is None
    ]


def system_versions(library: Path) -> dict[str, tuple[int, ...]]:
    """The newest version of each system interface that the library needs."""
    newest: dict[str, tuple[int, ...]] = {}
    for symbol in undefined_symbols(library):
        match = SYSTEM_VERSION.search(symbol.partition("@")[2])
        if match:
            version = tuple(int(part) for part in match[2].split("."))
            newest[match[1]] = max(newest.get(match[1], ()), version)
    return dict(sorted(newest.items()))


def dotted(version: tuple[int, ...]) -> str:
    """A version as people write it."""
    return ".".join(map(str, version))


def problems(wheel: Path) -> list[str]:
    """What is wrong with one wheel."""
    found = []
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = archive.namelist()
        found += [f"{name} is missing" for name in NEEDED if f"{PACKAGE}/{name}" not in names]
        outside = re.compile(rf"{PACKAGE}(/|-[^/]+\.dist-info/)")
        found += [f"{name} does not belong there" for name in names if not outside.match(name)]
        libraries = [name for name in names if name.endswith(".so")]
        pure = wheel.name.endswith("-py3-none-any.whl")
        if pure != (not libraries):
            found.append(f"its tag does not fit its libraries, {libraries}")
        if not pure and re.search(r"-py3-none-\w+\.whl$", wheel.name) is None:
            found.append("its tag must be py3-none-<platform>: one wheel for every Python")
        for name in libraries:
            library = Path(archive.extract(name, folder))
            found += [f"{name} uses {symbol}" for symbol in foreign_symbols(library)]
            needs = system_versions(library)
            print(f"{name} needs {', '.join(f'{n} {dotted(v)}' for n, v in needs.items())}")
            found += [
                f"{name} needs {n} {dotted(v)}, and torch's wheels need {dotted(NEWEST[n])}"
                for n, v in needs.items()
                if library.name in LIMITED and v > NEWEST.get(n, v)
            ]
    return found


def differences(first: Path, second: Path) -> list[str]:
    """Files that the two wheels do not share byte for byte."""
    with zipfile.ZipFile(first) as a, zipfile.ZipFile(second) as b:
        left, right = ({n: z.read(n) for n in z.namelist()} for z in (a, b))
    names = sorted(left.keys() | right.keys())
    return [f"{name} differs" for name in names if left.get(name) != right.get(name)]


def main() -> int:
    wheels = [Path(argument) for argument in sys.argv[1:]]
    if not 1 <= len(wheels) <= 2:
        print(__doc__)
        return 2
    found = [f"{wheel.name}: {problem}" for wheel in wheels for problem in problems(wheel)]
    if len(wheels) == 2:
        found += differences(*wheels)
    print("\n".join(found) or f"{', '.join(w.name for w in wheels)}: nothing wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
