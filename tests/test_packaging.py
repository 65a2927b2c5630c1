"""What can be said of the packages without building them; scripts/test_packaging.sh builds and runs them."""

from __future__ import annotations

import importlib.util
import re
import zipfile
from pathlib import Path

import pytest

import mxfp8_ops
from mxfp8_ops import native

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def check_wheel():
    spec = importlib.util.spec_from_file_location("check_wheel", ROOT / "scripts/check_wheel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_libraries_use_only_the_stable_abi_and_the_system(check_wheel, name):
    library = native.library_path(name)
    if not library.exists():
        pytest.skip(f"{library.name} is not built")
    assert check_wheel.foreign_symbols(library) == []
    assert set(check_wheel.system_versions(library)) >= {"GLIBC", "GLIBCXX"}


def test_symbols_of_torch_beyond_the_stable_abi_are_seen(check_wheel, monkeypatch):
    symbols = ["aoti_torch_get_dim", "torch_library_impl", "memcpy@GLIBC_2.14", "__gmon_start__"]
    foreign = ["_ZN3c105ErrorC1E", "_ZNK2at6Tensor5numelEv", "PyObject_Call", "THPVariable_Wrap"]
    monkeypatch.setattr(check_wheel, "undefined_symbols", lambda library: symbols + foreign)
    assert check_wheel.foreign_symbols(Path("x.so")) == foreign


def test_the_newest_system_versions_are_compared_as_numbers(check_wheel, monkeypatch):
    symbols = ["a@GLIBC_2.9", "b@GLIBC_2.14", "c@GLIBCXX_3.4.9", "d@GLIBCXX_3.4.26"]
    monkeypatch.setattr(check_wheel, "undefined_symbols", lambda library: symbols)
    found = check_wheel.system_versions(Path("x.so"))
    assert found == {"GLIBC": (2, 14), "GLIBCXX": (3, 4, 26)}


@pytest.mark.parametrize(
    ("symbol", "refused"),
    [
        ("f@GLIBC_2.28", False),
        ("f@GLIBC_2.34", True),
        ("f@GLIBCXX_3.4.24", False),
        ("f@GLIBCXX_3.4.26", True),
        ("f@GCC_9.9", False),
    ],
)
def test_the_cpu_library_loads_where_torch_does(
    check_wheel, monkeypatch, tmp_path, symbol, refused
):
    monkeypatch.setattr(check_wheel, "undefined_symbols", lambda library: [symbol])
    names = [f"mxfp8_ops/{name}" for name in check_wheel.NEEDED]
    path = tmp_path / "mxfp8_ops-1-py3-none-linux_x86_64.whl"
    problems = check_wheel.problems(wheel(path, *names, "mxfp8_ops/_lib/libmxfp8_cpu.so"))
    assert bool(problems) is refused
    assert all("and torch's wheels need" in problem for problem in problems)


def wheel(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "content")
    return path


def test_a_wheel_with_wrong_files_is_refused(check_wheel, tmp_path):
    needed = [f"mxfp8_ops/{name}" for name in check_wheel.NEEDED]
    good = wheel(tmp_path / "mxfp8_ops-1-py3-none-any.whl", *needed, "mxfp8_ops-1.dist-info/RECORD")
    assert check_wheel.problems(good) == []
    names = [*needed[1:], "tests/cases.py"]
    bad = wheel(tmp_path / "mxfp8_ops-2-cp311-cp311-linux_x86_64.whl", *names)
    text = " ".join(check_wheel.problems(bad))
    assert "py.typed is missing" in text
    assert "tests/cases.py does not belong there" in text
    assert "does not fit its libraries" in text
    assert "one wheel for every Python" in text
    assert check_wheel.differences(good, good) == []
    assert "tests/cases.py differs" in check_wheel.differences(good, bad)


def test_the_version_is_in_one_place():
    version = re.compile(rf"""["']{re.escape(mxfp8_ops.__version__)}["']""")
    files = [ROOT / "pyproject.toml", ROOT / "setup.py", *(ROOT / "mxfp8_ops").rglob("*.py")]
    assert [f.name for f in files if version.search(f.read_text())] == ["_version.py"]
