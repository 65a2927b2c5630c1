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


def _compile(target):
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(SCRIPT.parents[1]), *sys.path]))
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-W", "ignore", str(SCRIPT), target]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def results():
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(TARGETS, pool.map(_compile, TARGETS), strict=True))


@pytest.mark.parametrize("target", TARGETS)
def test_assembly(results, target):
    result = results[target]
    assert result.returncode == 0, result.stderr[-3000:]
    assert int(result.stdout) == (40 if target.startswith("gfx") else 20)
