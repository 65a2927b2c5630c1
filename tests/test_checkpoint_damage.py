"""``check`` sees damage that turns numbers into NaN; what a conversion keeps and notices of its input."""

from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors.torch import save_file

from mxfp8_ops.checkpoint import CheckpointError, Options, check, convert
from mxfp8_ops.checkpoint.source import TensorInfo
from mxfp8_ops.checkpoint.writer import Writer, partial_path
from mxfp8_ops.cli import main


@pytest.fixture
def source(tmp_path):
    torch.manual_seed(0)
    save_file({"up_proj.weight": torch.randn(64, 128)}, tmp_path / "in.safetensors")
    return tmp_path / "in.safetensors"


def set_byte(path, name, value):
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    content[8 + length + header[name]["data_offsets"][0]] = value
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "value", "outside"),
    [
        ("up_proj.weight", 0x7F, 1),
        ("up_proj.weight", 0xFF, 1),
        ("up_proj.weight_scale", 0xFF, 32),
        ("up_proj.weight_scale", 0x01, 32),
    ],
)
def test_damage_into_a_nan_is_seen(tmp_path, source, name, value, outside):
    out = tmp_path / "out.safetensors"
    convert(source, out)
    assert all(row.is_good for row in check(out, reader="mxfp8_ops"))
    set_byte(out, name, value)
    assert [row.outside for row in check(out, reader="mxfp8_ops")] == [outside]


def test_a_nan_of_the_original_is_good_and_its_loss_is_not(tmp_path):
    x = torch.randn(4, 64)
    x[1, 3], x[2, 40] = torch.nan, torch.inf
    save_file({"up_proj.weight": x}, tmp_path / "in.safetensors")
    out = tmp_path / "out.safetensors"
    convert(tmp_path / "in.safetensors", out)
    (row,) = check(out, reader="mxfp8_ops")
    assert row.is_good
    content = out.read_bytes()
    out.write_bytes(content.replace(b"\xff", b"\x7f"))
    (row,) = check(out, reader="mxfp8_ops")
    assert row.outside == 64


def test_metadata_of_an_index_stay_and_a_changed_config_is_noticed(tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "a"}')
    save_file({"up_proj.weight": torch.randn(64, 64)}, folder / "part.safetensors")
    index = {
        "metadata": {"total_size": 16384, "total_parameters": 4096},
        "weight_map": {"up_proj.weight": "part.safetensors"},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    convert(folder, out)
    written = json.loads((out / "model.safetensors.index.json").read_text())
    assert written["metadata"] == {"total_size": 64 * 64 + 64 * 2, "total_parameters": 4096}
    (folder / "config.json").write_text('{"model_type": "another"}')
    with pytest.raises(CheckpointError, match="--overwrite"):
        convert(folder, out)


def test_a_dry_run_gives_the_reasons_where_nothing_is_quantized(tmp_path, capsys):
    save_file({"norm.weight": torch.randn(32)}, tmp_path / "in.safetensors")
    arguments = ["convert", str(tmp_path / "in.safetensors"), str(tmp_path / "out.safetensors")]
    assert main([*arguments, "--dry-run"]) == 0
    assert "1-dimensional" in capsys.readouterr().out
    assert main(arguments) == 1
    assert "no weight to quantize" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.safetensors"]


@pytest.mark.parametrize("name", ["include", "exclude"])
def test_a_string_is_not_a_tuple_of_patterns(name):
    with pytest.raises(ValueError, match="tuple of patterns"):
        Options(**{name: "*up*"})


def test_a_late_process_does_not_cut_the_finished_file(tmp_path, monkeypatch):
    """It opens the partial file before the rename and locks it after."""
    path, tensors = tmp_path / "w.safetensors", [TensorInfo("t", "U8", (4,))]
    late, lock = Writer(path, tensors, {}), Writer._lock

    def finish_first(self):
        if self is late:
            partial_path(path).replace(path)
        lock(self)

    monkeypatch.setattr(Writer, "_lock", finish_first)
    with Writer(path, tensors, {}) as writer:
        writer.write("t", 0, torch.tensor([1, 2, 3, 4], dtype=torch.uint8))
    content = path.read_bytes()
    os.link(path, partial_path(path))
    path.unlink()
    with pytest.raises(CheckpointError, match="another process"):
        late.__enter__()
    assert path.read_bytes() == content
