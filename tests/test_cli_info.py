"""``mxfp8-ops info`` and the command line around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mxfp8_ops
from mxfp8_ops import dispatch, native, platform
from mxfp8_ops.cli import SUBCOMMANDS, machine, main
from mxfp8_ops.ops import OPERATIONS

ROOT = Path(__file__).parents[1]


def run(*arguments: str, path: Path | None = None, **environment: str):
    places = [str(p) for p in (path, ROOT) if p is not None]
    env = {k: v for k, v in os.environ.items() if not k.startswith("MXFP8_OPS_")}
    env |= {"PYTHONPATH": os.pathsep.join(places), **environment}
    return subprocess.run(
        [sys.executable, "-m", "mxfp8_ops", *arguments],
        env=env,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_json_has_every_backend_with_its_reason(capsys):
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in found["backends"] if row["device"] == "cpu"}
    assert set(rows) == set(dispatch.BACKENDS)
    assert rows["torch"]["reason"] is None
    assert "cuda tensors" in rows["cuda"]["reason"]
    assert sum(row["chosen"] for row in rows.values()) == 1
    assert set(found["routes"]["cpu"]) == set(OPERATIONS)
    assert found["routes"]["cpu"]["quantize"][-1] == "torch"
    assert set(found["deviations"]) == {"cute_dsl", "xpu_vllm"}
    assert found["mxfp8_ops"] == mxfp8_ops.__version__
    assert set(found["native_libraries"]) == {"cpu", "cuda", "xpu"}


def test_text_names_what_matters(capsys):
    assert main(["info"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        mxfp8_ops.__version__,
        "Native libraries",
        "it runs on cuda tensors",
        "chosen",
        "come back as zeros",
    ):
        assert words in text


@pytest.mark.skipif(native.load_error("cpu") is not None, reason="the native library is not built")
def test_the_instructions_in_use_are_those_of_the_native_library():
    isa = machine.describe()["platform"]["cpu instructions"].split()[-1]
    assert isa in ("portable", "avx2", "avx512")


@pytest.mark.parametrize("error", ["RuntimeError", "AssertionError", "SystemExit", "OSError"])
def test_packages_that_raise_on_import_do_not_stop_it(tmp_path, error):
    for name in ("triton", "flashinfer", "cutlass", "vllm_xpu_kernels", "rich", "matplotlib"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise {error}('{name} is broken')\n")
    done = run("info", path=tmp_path, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    assert "cpu" in done.stdout
    assert "Traceback" not in done.stderr


def test_probes_that_fail_are_answers(monkeypatch, capsys):
    def fail(*args, **kwargs):
        raise RuntimeError("the driver is gone")

    monkeypatch.setattr(platform, "devices", fail)
    monkeypatch.setattr(platform, "package_version", fail)
    monkeypatch.setattr(dispatch, "unavailable_reason", fail)
    monkeypatch.setattr(dispatch, "preference", fail)
    monkeypatch.setattr(dispatch, "routes", fail)
    monkeypatch.setattr(native, "load_error", fail)
    assert main(["info"]) == 0
    assert "the driver is gone" in capsys.readouterr().out


def test_an_unknown_backend_in_the_environment_is_shown(capsys):
    done = run("info", MXFP8_OPS_BACKEND="bogus")
    assert done.returncode == 0, done.stderr
    assert "got 'bogus'" in done.stdout
    assert ", chosen" not in done.stdout


@pytest.mark.parametrize("command", [c.__name__.rpartition(".")[2] for c in SUBCOMMANDS])
def test_every_command_has_help_and_json(command, capsys):
    assert main([command, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [[], ["bogus"], ["info", "--bogus"], ["verify", "--seed", "x"]]
)
def test_wrong_usage_is_2(arguments, capsys):
    assert main(arguments) == 2
    assert "usage" in capsys.readouterr().err


def test_version(capsys):
    assert main(["--version"]) == 0
    assert mxfp8_ops.__version__ in capsys.readouterr().out


def test_a_closed_pipe_is_no_traceback():
    command = f"{sys.executable} -m mxfp8_ops info | head -1"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
