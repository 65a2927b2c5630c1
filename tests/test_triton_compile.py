"""The Triton kernels compile for GPUs that are not here, to the instructions that make them fast."""

import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

SCRIPT = Path(__file__).with_name("triton_compiled.py")
TARGETS = ("gfx90a", "gfx942", "gfx950", "gfx1201", "sm_80", "sm_90", "sm_100", "sm_120")


def _start(*arguments, **variables):
    path = os.pathsep.join([str(SCRIPT.parents[1]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    for name in {"TRITON_INTERPRET", "TRITON_CACHE_DIR"} - variables.keys():
        environment.pop(name, None)
    command = [sys.executable, "-W", "ignore", str(SCRIPT), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


def _compile(target):
    process = _start(target)
    return (*process.communicate(), process.returncode)


@pytest.fixture(scope="module")
def results():
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(TARGETS, pool.map(_compile, TARGETS), strict=True))


@pytest.mark.parametrize("target", TARGETS)
def test_assembly(results, target):
    output, errors, code = results[target]
    assert code == 0, errors[-3000:]
    assert int(output) == (40 if target.startswith("gfx") else 20)


def test_cold_processes_share_a_cache(tmp_path):
    """As the ranks of a node do when a job starts."""
    ranks = [_start("sm_90", "2", TRITON_CACHE_DIR=str(tmp_path)) for _ in range(8)]
    for rank in ranks:
        output, errors = rank.communicate()
        assert (rank.returncode, output) == (0, "2\n"), errors[-3000:]
    assert len(list(tmp_path.rglob("*.ptx"))) == 2
