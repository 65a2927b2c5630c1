"""DTensors: two ranks hold the bytes of the unsharded result, placed as the sharding rules say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TILES_128 = {"scale_layout": "swizzled_32_4_4"}
TILES_8 = {"scale_layout": "swizzled_8x4"}


@dataclass(frozen=True)
class Case:
    """Placements are words: R(eplicate), P(artial), S(hard) and a dimension; ``/`` parts mesh dimensions."""

    operation: str
    shape: tuple[int, ...]
    inputs: str
    outputs: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        options = ",".join(f"{k}={v}" for k, v in self.options.items())
        shape = "x".join(map(str, self.shape))
        return f"{self.operation}-{shape}-{self.inputs.replace(' ', '+')}-{options}"


# Where a rule refuses the given placement, the shape leaves no sharding at all: which of several
# others DTensor prefers is a matter of its costs.
CASES = (
    Case("quantize", (6, 64), "R", "R R"),
    Case("quantize", (33, 64), "S0", "S0 S0"),
    # The same tensor in other layouts and types: decisions must not be mistaken for one another.
    Case("quantize", (33, 64), "S0", "R R", TILES_128),
    Case("quantize", (33, 64), "S0", "R R", TILES_8),
    Case("quantize", (33, 64), "S0", "S0 S0", {"dtype": "float8_e5m2"}),
    Case("quantize", (33, 64), "S0", "S0 S0", {"scaling_mode": "floor"}),
    Case("quantize", (256, 96), "S0", "S0 S0", TILES_128),
    Case("quantize", (128, 32), "S0", "R R", TILES_128),
    Case("quantize", (16, 96), "S0", "S0 S0", TILES_8),
    Case("quantize", (24, 32), "S0", "R R", TILES_8),
    Case("quantize", (6, 128), "S1", "S1 S1"),
    Case("quantize", (1, 96), "S1", "R R"),
    Case("quantize", (1, 128), "S1", "R R", TILES_8),
    Case("quantize", (1, 128), "S1", "R R", {"alignment": 128}),
    Case("quantize", (1, 256), "S1", "S1 S1", {"alignment": 128}),
    Case("quantize", (6, 50), "S0", "S0 S0", {"alignment": 32}),
    Case("quantize", (1, 50), "S1", "R R", {"alignment": 32}),
    Case("quantize", (128,), "S0", "S0 S0"),
    Case("quantize", (128,), "S0", "R R", TILES_128),
    Case("quantize", (3, 5, 64), "S0", "S0 S0", TILES_128),
    Case("quantize", (3, 5, 64), "S1", "S1 S1"),
    Case("quantize", (2, 3, 5, 64), "S1", "S1 S1", TILES_8),
    Case("quantize", (1, 32), "P", "R R"),
    Case("quantize", (33, 64), "R/S0", "R/S0 R/S0"),
    Case("quantize", (6, 128), "R/S1", "R/S1 R/S1"),
    Case("quantize_torch", (33, 64), "S0", "S0 S0"),
    Case("quantize_torch", (33, 64), "S0", "R R", TILES_8),
    Case("quantize_cpu", (6, 128), "S1", "S1 S1"),
    Case("quantize_columnwise", (128, 6), "S0", "S1 S1"),
    Case("quantize_columnwise", (96, 1), "S0", "R R"),
    Case("quantize_columnwise", (64, 33), "S1", "S0 S0"),
    Case("quantize_columnwise", (64, 33), "S1", "R R", TILES_8),
    Case("quantize_columnwise", (32, 256), "S1", "S0 S0", TILES_128),
    Case("quantize_columnwise", (50, 8), "S1", "S0 S0", {"alignment": 32}),
    Case("quantize_columnwise", (3, 32, 5), "S0", "S0 S0", TILES_128),
    Case("quantize_columnwise", (3, 64, 5), "S1", "S2 S2"),
    Case("quantize_both", (64, 96), "S0", "S0 S0 S1 S1"),
    Case("quantize_both", (96, 64), "S1", "S1 S1 S0 S0"),
    Case("quantize_both", (32, 32), "S0", "R R R R"),
    Case("quantize_both", (64, 64), "S0", "R R R R", {"scale_layout_t": "swizzled_32_4_4"}),
    Case("quantize_both", (64, 64), "S1", "R R R R", TILES_8),
    Case("quantize_both", (3, 32, 32), "S0", "S0 S0 S0 S0", TILES_128),
    Case("dequantize", (33, 64), "S0 S0", "S0"),
    Case("dequantize", (33, 64), "S0 R", "S0"),
    Case("dequantize", (33, 64), "R R", "R", TILES_128),
    Case("dequantize", (33, 64), "S0 S0", "S0", {"dtype": "float32"}),
    Case("dequantize", (256, 64), "S0 S0", "S0", TILES_128),
    Case("dequantize", (6, 128), "S1 S1", "S1"),
    Case("dequantize", (128,), "S0 S0", "S0"),
    Case("dequantize", (3, 5, 64), "S0 S0", "S0", TILES_128),
    Case("dequantize_torch", (6, 128), "S1 S1", "S1"),
)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[dict[str, str]]:
    """What each of two processes reports."""
    store = tmp_path_factory.mktemp("distributed") / "store"
    worker = str(Path(__file__).with_name("distributed_worker.py"))
    ranks = [
        subprocess.Popen(
            [sys.executable, worker, str(rank), str(store)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, (_, errors) in zip(ranks, outputs, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ranks_hold_the_bytes_of_the_whole(case, results):
    for result in results:
        assert result[case.name] == case.outputs, result[case.name]


def test_case_names_are_unique():
    assert len({case.name for case in CASES}) == len(CASES)


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
    )


def test_only_the_module_itself_imports_dtensor():
    result = run(
        "import sys, torch; before = set(sys.modules)\n"
        "import mxfp8_ops; mxfp8_ops.dequantize(*mxfp8_ops.quantize(torch.ones(2, 32)))\n"
        "print([m for m in set(sys.modules) - before if m.startswith('torch.distributed.tensor')])"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_a_torch_without_dtensor_is_refused_in_a_sentence():
    result = run(
        "import sys; sys.modules['torch.distributed.tensor'] = None\nimport mxfp8_ops.distributed"
    )
    assert result.returncode != 0
    assert "mxfp8_ops.distributed needs a torch with torch.distributed.tensor" in result.stderr
