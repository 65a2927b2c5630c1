"""``mxfp8-ops bench`` and the measuring behind it, on tiny shapes; no time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from mxfp8_ops import formats, platform
from mxfp8_ops.benchmark import measure, peers, report, timing
from mxfp8_ops.cli import bench, main

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """One input per case instead of four caches full, and no lasting change of malloc."""
    monkeypatch.setattr(timing, "rotating", lambda total, device: 1)
    monkeypatch.setattr(timing, "keep_freed_memory", lambda: None)


def test_table_record_and_plot_of_the_cpu(tmp_path, capsys):
    arguments = ["bench", "--device", "cpu", "--quick", "--shapes", "2x64,3x96"]
    assert main([*arguments, "--output", str(tmp_path / "new")]) == 0
    text = capsys.readouterr().out
    assert "2x64" in text
    assert "of copy" in text
    record = json.loads((tmp_path / "new/cpu.json").read_text())
    assert {row["shape"] for row in record["rows"]} == {"2x64", "3x96"}
    assert all(row["us"] > 0 and row["of_copy"] > 0 for row in record["rows"])
    assert record["machine"]["routes"]["cpu"]
    assert (tmp_path / "new/cpu.png").read_bytes().startswith(b"\x89PNG")


def test_json_on_stdout_writes_no_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--device", "cpu", "--quick", "--shapes", "1x32", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["device"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("device", "rocm", "properties", "size"),
    [
        ("cuda", False, {"L2_cache_size": 50 << 20}, 50 << 20),
        ("cuda", True, {"L2_cache_size": 4 << 20}, 256 << 20),
        ("xpu", False, {"last_level_cache_size": 384 << 20}, 384 << 20),
        ("xpu", False, {"last_level_cache_size": 0}, 64 << 20),
        ("xpu", False, {}, 64 << 20),
    ],
)
def test_the_last_cache_before_memory(monkeypatch, device, rocm, properties, size):
    monkeypatch.setattr(platform, "is_rocm", lambda: rocm)
    found = types.SimpleNamespace(**properties)
    monkeypatch.setattr(getattr(torch, device), "get_device_properties", lambda device: found)
    assert timing.cache_bytes(torch.device(device)) == size


def test_the_measured_device_is_the_current_one(monkeypatch, tmp_path):
    entered = []

    class Current:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            entered.append(self.index)

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(bench, "parse_device", lambda text: torch.device("xpu", 1))
    monkeypatch.setattr(torch.accelerator, "device_index", Current)
    monkeypatch.setattr(measure, "measure_shape", lambda *args, **options: None)
    monkeypatch.setattr(bench.machine, "device_name", lambda device: "one of two")
    assert main(["bench", "--device", "xpu:1", "--shapes", "1x32", "--output", str(tmp_path)]) == 0
    assert entered == [1]


def test_triton_has_a_name_for_each_vendor(monkeypatch):
    versions = {"triton-xpu": "3.7.2"}
    monkeypatch.setattr(platform, "package_version", versions.get)
    assert platform.triton_version() == "3.7.2"
    assert report.record("", 0, [])["triton"] == "3.7.2"
    versions.clear()
    assert platform.triton_version() is None


def test_every_competitor_is_measured_without_quick():
    run = measure.Run(0.0, CPU, lambda text: None)
    measure.measure_shape(run, "2x64", [], others=True)
    assert {row["backend"] for row in run.rows} == {"dispatcher", "inductor", "eager"}
    assert all("us" in row for row in run.rows), run.rows


def test_details_cover_layouts_types_and_modes(monkeypatch):
    monkeypatch.setattr(measure, "DETAILED", {"32x64"})
    run = measure.Run(0.0, CPU, lambda text: None)
    measure.measure_shape(run, "32x64", ["torch"], others=False)
    own = [row for row in run.rows if row["backend"] == "torch"]
    assert all("us" in row for row in own), own
    assert {row["what"] for row in own} == {
        "quantize",
        "quantize_columnwise",
        "quantize_both",
        "dequantize",
    }
    assert {row.get("scale_layout", "linear") for row in own} == set(formats.SCALE_LAYOUTS)
    assert {row["scaling_mode"] for row in own if "scaling_mode" in row} == {
        "floor",
        "ceil",
        "even",
    }


def test_bytes_are_input_data_and_scales():
    assert measure.total_bytes("128x64", torch.bfloat16, "quantize", "linear") == 128 * (
        128 + 64 + 2
    )
    both = measure.total_bytes("128x64", torch.float32, "quantize_both", "linear")
    assert both == 128 * 256 + 2 * 128 * 64 + 128 * 2 + 64 * 4


def test_a_case_that_raises_is_a_row_and_exit_code_1(monkeypatch, capsys):
    def fail(shape, dtype, device="cuda"):
        def make(index):
            raise RuntimeError("out of everything")

        return make

    monkeypatch.setattr(measure, "random_input", fail)
    assert main(["bench", "--device", "cpu", "--quick", "--shapes", "1x32", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert all("out of everything" in row["error"] for row in rows)


@pytest.mark.parametrize("shapes", ["0x32", "1x33", "axb", "32", "", "1x32,"])
def test_wrong_shapes_are_2(shapes, capsys):
    assert main(["bench", "--device", "cpu", "--shapes", shapes]) == 2
    assert "--shapes" in capsys.readouterr().err


def test_broken_peers_are_left_out_with_a_line(monkeypatch):
    def broken():
        raise AssertionError("no GPU")

    monkeypatch.setattr(
        peers, "_PEERS", {"torchao": broken, "good": lambda: {"good": (abs, "linear")}}
    )
    lines: list[str] = []
    assert set(peers.find_peers(torch.device("cuda", 0), lines.append)) == {"good"}
    assert lines == ["torchao left out: AssertionError"]
    assert peers.find_peers(CPU, lines.append) == {}


def test_without_matplotlib_there_is_a_record_and_a_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    lines: list[str] = []
    report.write(tmp_path / "r.json", report.record("cpu", 1.0, []), lines.append)
    assert json.loads((tmp_path / "r.json").read_text())["rows"] == []
    assert lines == ["matplotlib is not installed: no plot"]


def test_an_output_folder_that_cannot_be_made_is_1(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    arguments = ["bench", "--device", "cpu", "--quick", "--shapes", "1x32"]
    assert main([*arguments, "--output", str(tmp_path / "file")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_default_device_is_one_of_this_machine():
    assert bench._default_device().type in ("cpu", "cuda", "xpu", "mps")


def test_the_script_for_the_cpu_keeps_its_form(tmp_path):
    path = tmp_path / "cpu.json"
    command = [sys.executable, "benchmarks/cpu.py", "--megabytes", "1", "--repeats", "1"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, "--json", str(path)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(path.read_text())
    before = json.loads((ROOT / "benchmarks/results/cpu_zen4.json").read_text())
    assert record.keys() == before.keys()
    assert record["rows"][0].keys() == before["rows"][0].keys()
    assert [row["case"] for row in record["rows"]] == [row["case"] for row in before["rows"]]
