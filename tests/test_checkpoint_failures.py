"""Conversions that are interrupted, repeated, spread over processes, or given something broken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
from cases import run_python
from checkpoints import QUANTIZED, contents, convert, load, save_folder, start, tensors
from safetensors.torch import save_file

from mxfp8_ops.checkpoint import CheckpointError, Options, checker, converter
from mxfp8_ops.checkpoint import convert as api_convert
from mxfp8_ops.checkpoint.writer import Writer


def refused(capsys, *arguments, code=1) -> str:
    """The one sentence on stderr of a conversion that fails."""
    capsys.readouterr()
    assert convert(*arguments) == code
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("convert: ")]
    assert len(lines) == 1, captured
    assert lines[0].startswith("mxfp8-ops convert: ")
    return lines[0]


def test_killed_and_started_again(tmp_path):
    source = save_folder(tmp_path / "in", shards=6, rows=1 << 16)
    assert convert(source, tmp_path / "whole") == 0
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    process = start(source, tmp_path / "out", env=environment)
    state = tmp_path / "out/.mxfp8_ops"
    deadline = time.monotonic() + 120
    while len(list(state.glob("model-*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finished = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("*.safetensors")}
    assert 2 <= len(finished) < 6
    (tmp_path / "out/.model-00006-of-00006.safetensors.partial").write_bytes(b"half")
    assert convert(source, tmp_path / "out") == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    records = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("*.safetensors")}
    assert sum(records[name] == finished[name] for name in finished) >= 2


def test_a_finished_conversion_is_not_done_again(tmp_path):
    source = save_folder(tmp_path / "in")
    first = api_convert(source, tmp_path / "out")
    before = (tmp_path / "out/model.safetensors").stat().st_mtime_ns
    assert api_convert(source, tmp_path / "out") == first
    assert (tmp_path / "out/model.safetensors").stat().st_mtime_ns == before


def test_other_options_need_overwrite(tmp_path, capsys, monkeypatch):
    source = save_folder(tmp_path / "in", shards=2)
    assert convert(source, tmp_path / "out") == 0
    text = refused(capsys, source, tmp_path / "out", "--scaling-mode", "floor")
    assert "exists and is not an unfinished conversion" in text
    assert convert(source, tmp_path / "out", "--scaling-mode", "floor", "--overwrite") == 0
    # Interrupted after one of the two files.
    monkeypatch.setattr(converter, "_finish", lambda *a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        api_convert(source, tmp_path / "half")
    monkeypatch.undo()
    text = refused(capsys, source, tmp_path / "half", "--scaling-mode", "even")
    assert "unfinished conversion of other files or with other options; --overwrite" in text
    assert convert(source, tmp_path / "half") == 0
    assert not (tmp_path / "half/.mxfp8_ops").exists()


def test_two_processes_do_not_write_one_file(tmp_path):
    path = tmp_path / "a.safetensors"
    with Writer(path, [], {}), pytest.raises(CheckpointError, match="another process is writing"):
        Writer(path, [], {}).__enter__()
    assert path.exists()


def test_two_ranks_give_the_bytes_of_one(tmp_path):
    source = save_folder(tmp_path / "in", shards=5)
    assert convert(source, tmp_path / "one") == 0
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "mxfp8_ops", "convert", str(source), str(tmp_path / "two")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_the_share_of_a_rank():
    from mxfp8_ops.checkpoint.ranks import Group

    files = [f"f{i}" for i in range(7)]
    shares = [Group(rank, 3).share(files) for rank in range(3)]
    assert sorted(file for share in shares for file in share) == files
    assert max(map(len, shares)) - min(map(len, shares)) == 1


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def break_index(folder, change):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


FAULTS = {
    "truncated": (
        lambda f: cut(f / "model-00001-of-00002.safetensors", 5000),
        "model-00001-of-00002.safetensors is not a whole safetensors file",
    ),
    "empty file": (
        lambda f: cut(f / "model-00002-of-00002.safetensors", 0),
        "model-00002-of-00002.safetensors is not a whole safetensors file",
    ),
    "garbage": (
        lambda f: (f / "model-00001-of-00002.safetensors").write_bytes(b"\xff" * 4096),
        "is not a whole safetensors file",
    ),
    "missing shard": (
        lambda f: (f / "model-00002-of-00002.safetensors").unlink(),
        "names the file 'model-00002-of-00002.safetensors', which is missing",
    ),
    "name without tensor": (
        lambda f: break_index(f, lambda m: m.update(x="model-00001-of-00002.safetensors")),
        "places 'x' in 'model-00001-of-00002.safetensors', which does not contain it",
    ),
    "tensor without name": (
        lambda f: break_index(f, lambda m: m.pop("shard0.step")),
        "contains 'shard0.step', which",
    ),
    "no index": (
        lambda f: (f / "model.safetensors.index.json").unlink(),
        "has 2 .safetensors files and no",
    ),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json does not exist"),
    "bad config": (lambda f: (f / "config.json").write_text("{"), "cannot be read as JSON"),
    "no object": (
        lambda f: (f / "config.json").write_text("[]"),
        "must hold a JSON object, got list",
    ),
    "quantized": (
        lambda f: (f / "config.json").write_text(
            '{"quantization_config": {"quant_method": "fp8"}}'
        ),
        "is quantized already (quantization_config in config.json names 'fp8')",
    ),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_broken_input(tmp_path, capsys, fault):
    source = save_folder(tmp_path / "in", shards=2)
    breaks, message = FAULTS[fault]
    breaks(source)
    assert message in refused(capsys, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_places_that_are_refused(tmp_path, capsys):
    source = save_folder(tmp_path / "in")
    file = source / "model.safetensors"
    for output in (source, source / "inside", tmp_path):
        assert "must be neither the input" in refused(capsys, source, output)
    (tmp_path / "a file").write_text("")
    assert "is a file; the result of a folder" in refused(capsys, source, tmp_path / "a file")
    below = tmp_path / "a file/below"
    assert "cannot be written: Not a directory" in refused(capsys, source, below)
    assert "must end in .safetensors" in refused(capsys, file, tmp_path / "out.bin")
    (tmp_path / "folder").mkdir()
    assert "must end in .safetensors" in refused(capsys, file, tmp_path / "folder")
    assert "must be neither" in refused(capsys, file, file)
    assert "does not exist" in refused(capsys, tmp_path / "nowhere", tmp_path / "out")
    assert "must be a .safetensors file or" in refused(
        capsys, tmp_path / "a file", tmp_path / "out"
    )
    (tmp_path / "used").mkdir()
    (tmp_path / "used/x").write_text("")
    assert "--overwrite replaces it" in refused(capsys, source, tmp_path / "used")
    assert "OUT is missing" in refused(capsys, source, code=2)
    assert "jobs must be at least 1" in refused(capsys, source, tmp_path / "o", "--jobs", 0, code=2)
    assert "--backend cuda cannot be used on cpu" in refused(
        capsys, source, tmp_path / "o", "--backend", "cuda", code=2
    )
    assert "no weight to quantize" in refused(capsys, source, tmp_path / "o", "--include", "x")


def test_options_name_what_is_allowed():
    with pytest.raises(ValueError, match=r"target must be one of 'compressed-tensors', .*'gguf'"):
        Options(target="gguf")
    with pytest.raises(ValueError, match=r"scaling_mode must be one of 'rceil', .*'up'"):
        Options(scaling_mode="up")


def test_a_scale_that_is_there_already(tmp_path, capsys):
    content = {"a.weight": torch.ones(2, 32), "a.weight_scale": torch.ones(2)}
    save_file(content, tmp_path / "a.safetensors")
    text = refused(capsys, tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert "already contains 'a.weight_scale', a scale of a" in text


def test_a_full_disk(tmp_path):
    """A limit of the file size raises OSError where a full disk would."""
    source = save_folder(tmp_path / "in", rows=4096)
    code = f"""
        import resource, signal, sys
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        from mxfp8_ops import cli
        sys.exit(cli.main(["convert", {str(source)!r}, {str(tmp_path / "out")!r}]))
    """
    result = run_python(textwrap.dedent(code))
    assert result.returncode == 1
    assert "model.safetensors cannot be written: File too large" in result.stderr
    assert "Traceback" not in result.stderr
    assert [p.name for p in (tmp_path / "out").iterdir()] == [".mxfp8_ops"]


def test_a_failure_in_one_file_stops_the_others_and_leaves_no_half(tmp_path, monkeypatch):
    source = save_folder(tmp_path / "in", shards=4)
    quantize, count = converter._quantize, iter(range(100))

    def fail(plan, path, info, writer):
        if next(count) == 3:
            raise CheckpointError("broken on the way")
        return quantize(plan, path, info, writer)

    monkeypatch.setattr(converter, "_quantize", fail)
    with pytest.raises(CheckpointError, match="broken on the way"):
        api_convert(source, tmp_path / "out", Options(jobs=2))
    assert not list((tmp_path / "out").glob(".*.partial"))
    monkeypatch.undo()
    api_convert(source, tmp_path / "out")
    assert all(row.is_good for row in checker.check(tmp_path / "out", reader="mxfp8_ops"))
    assert not [t for t in threading.enumerate() if t.name.startswith("mxfp8_ops.convert")]


def test_check_names_what_is_wrong(tmp_path, capsys):
    source = save_folder(tmp_path / "in")
    convert(source, tmp_path / "out")
    path = tmp_path / "out/model.safetensors"
    after = load(path)
    after[QUANTIZED[0].replace("weight", "weight_scale")][3, 1] += 1
    del after[QUANTIZED[1].replace("weight", "weight_scale")]
    save_file(after, path)
    assert convert("--check", tmp_path / "out", "--reader", "mxfp8_ops") == 1
    out = capsys.readouterr().out
    assert f"{QUANTIZED[1].replace('weight', 'weight_scale')} is missing" in out
    assert "elements too far away" in out
    assert "2 are not as they should be" in out
    text = refused(capsys, "--check", tmp_path / "in", "--reader", "mxfp8_ops")
    assert "this is no finished conversion of mxfp8_ops" in text
    os.rename(source, tmp_path / "moved")
    text = refused(capsys, "--check", tmp_path / "out", "--reader", "mxfp8_ops")
    assert "name the place where it is now" in text
    arguments = ("--check", tmp_path / "out", tmp_path / "moved", "--reader", "mxfp8_ops")
    assert convert(*arguments) == 1


def test_memory_stays_within_twice_the_largest_tensor(tmp_path):
    content = {f"layer{i}.weight": torch.ones(4096, 1024, dtype=torch.bfloat16) for i in range(40)}
    content["large.weight"] = torch.ones(16384, 2048, dtype=torch.bfloat16)
    save_file(content, tmp_path / "a.safetensors")
    save_file({"a.weight": torch.ones(4096, 1024)}, tmp_path / "small.safetensors")
    # Not ru_maxrss, which a child has from its parent.
    code = f"""
        from pathlib import Path
        from mxfp8_ops.checkpoint import convert

        def peak():
            lines = Path("/proc/self/status").read_text().splitlines()
            return int(next(l for l in lines if l.startswith("VmHWM")).split()[1]) * 1024

        convert({str(tmp_path / "small.safetensors")!r}, {str(tmp_path / "s.safetensors")!r})
        before = peak()
        convert({str(tmp_path / "a.safetensors")!r}, {str(tmp_path / "b.safetensors")!r})
        print(before, peak() - before)
    """
    result = run_python(textwrap.dedent(code))
    assert result.returncode == 0, result.stderr
    before, growth = map(int, result.stdout.split())
    print(f"{growth / 2**20:.0f} MiB above {before / 2**20:.0f} MiB")
    assert growth < 2 * content["large.weight"].nbytes


def test_symbolic_links_as_in_a_download_cache(tmp_path):
    source = save_folder(tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        (tmp_path / "snapshot" / name).symlink_to(source / name)
    assert convert(tmp_path / "snapshot", tmp_path / "out") == 0
    assert not any(p.is_symlink() for p in (tmp_path / "out").iterdir())
    assert set(load(tmp_path / "out/model.safetensors")) > set(tensors())
