"""The Triton kernels give the reference's bytes, in Triton's interpreter: no GPU needed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

SCRIPT = Path(__file__).with_name("triton_interpreted.py")


@pytest.mark.parametrize(
    ("section", "calls"),
    [
        ("numerics", 24),
        ("maxima", 8),
        ("dequantize", 18),
        ("shapes", 45),
        ("columns", 126),
        ("modes", 24),
        ("replays", 5),
    ],
)
def test_interpreted_kernels_give_reference_bytes(section, calls):
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(SCRIPT.parents[1]), *sys.path]))
    result = subprocess.run(
        [sys.executable, str(SCRIPT), section], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout.split()[-1]) == calls
