"""Conversions that meet earlier results, links, damaged records, and names that engines take otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings

import pytest
import torch
from checkpoints import QUANTIZED, contents, convert, header, load, save_folder
from safetensors.torch import save_file

from mxfp8_ops.checkpoint import CheckpointError, Options, converter, make_plan
from mxfp8_ops.checkpoint import convert as api_convert

SHARD = "model-00001-of-00002.safetensors"


def interrupt(source, output, monkeypatch):
    """Leave a conversion after its files and before its report."""
    monkeypatch.setattr(converter, "_finish", lambda *a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        api_convert(source, output)
    monkeypatch.undo()


def test_a_linked_input_is_not_replaced(tmp_path, capsys):
    source, output = save_folder(tmp_path / "in"), tmp_path / "out"
    output.mkdir()
    os.rename(source / "model.safetensors", output / "model.safetensors")
    (source / "model.safetensors").symlink_to(output / "model.safetensors")
    before = contents(output)
    assert convert(source, output, "--overwrite") == 1
    assert "is a link into the output" in capsys.readouterr().err
    assert contents(output) == before


def test_links_in_the_output_are_replaced_and_not_followed(tmp_path):
    source, output = save_folder(tmp_path / "in"), tmp_path / "out"
    before = contents(source)
    output.mkdir()
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        (output / name).symlink_to(source / name)
    assert convert(source, output, "--overwrite") == 0
    assert contents(source) == before
    assert not any(p.is_symlink() for p in output.iterdir())


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_a_link_to_nothing_is_an_error(tmp_path, capsys, name):
    source = save_folder(tmp_path / "in")
    (source / name).unlink()
    (source / name).symlink_to(tmp_path / "gone")
    assert convert(source, tmp_path / "out") == 1
    assert "does not exist" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_overwrite_leaves_nothing_of_an_earlier_result(tmp_path):
    former = save_folder(tmp_path / "former", shards=2)
    source = save_folder(tmp_path / "in")
    assert convert(former, tmp_path / "out", "--format", "modelopt") == 0
    assert convert(source, tmp_path / "out", "--overwrite") == 0
    assert convert(source, tmp_path / "fresh") == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_overwrite_of_an_unfinished_result(tmp_path, monkeypatch):
    interrupt(save_folder(tmp_path / "former", shards=2), tmp_path / "out", monkeypatch)
    source = save_folder(tmp_path / "in")
    assert convert(source, tmp_path / "out", "--overwrite") == 0
    assert convert(source, tmp_path / "fresh") == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_overwrite_does_not_delete_weights_of_others(tmp_path, capsys):
    source, other = save_folder(tmp_path / "in"), save_folder(tmp_path / "other", shards=2)
    before = contents(other)
    assert convert(source, other, "--overwrite") == 1
    assert "is not of an earlier conversion" in capsys.readouterr().err
    assert contents(other) == before


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", cut),
        ("model.safetensors", os.unlink),
        ("config.json", os.unlink),
        ("tokenizer.json", os.unlink),
    ],
)
def test_a_finished_result_that_was_damaged_is_not_taken_for_finished(
    tmp_path, capsys, name, damage
):
    source, output = save_folder(tmp_path / "in"), tmp_path / "out"
    assert convert(source, output) == 0
    damage(output / name)
    assert convert(source, output) == 1
    assert "--overwrite replaces it" in capsys.readouterr().err
    assert convert(source, output, "--overwrite") == 0
    assert convert(source, tmp_path / "fresh") == 0
    assert contents(output) == contents(tmp_path / "fresh")


def test_an_unfinished_result_that_was_cut_is_done_again(tmp_path, monkeypatch):
    source = save_folder(tmp_path / "in", shards=2)
    interrupt(source, tmp_path / "out", monkeypatch)
    (tmp_path / "out" / SHARD).write_bytes(b"short")
    assert convert(source, tmp_path / "out") == 0
    assert convert(source, tmp_path / "fresh") == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("record", ["{}", "[]", "{", '{"fingerprint": 3}', "\xff"])
def test_a_damaged_record_means_that_the_file_is_done_again(tmp_path, monkeypatch, record):
    source = save_folder(tmp_path / "in", shards=2)
    interrupt(source, tmp_path / "out", monkeypatch)
    (tmp_path / f"out/.mxfp8_ops/{SHARD}.json").write_text(record, "latin1")
    assert convert(source, tmp_path / "out") == 0
    assert convert(source, tmp_path / "fresh") == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("text", ["{}", "[]", "null", "{", '{"source": 3}'])
def test_a_damaged_report(tmp_path, capsys, text):
    source, output = save_folder(tmp_path / "in"), tmp_path / "out"
    assert convert(source, output) == 0
    (output / "mxfp8_report.json").write_text(text)
    for arguments in (("--check", output, "--reader", "mxfp8_ops"), (source, output)):
        assert convert(*arguments) == 1
        assert "mxfp8_report.json" in capsys.readouterr().err
    assert convert(source, output, "--overwrite") == 0


def test_check_looks_at_copied_tensors(tmp_path, capsys):
    source, path = save_folder(tmp_path / "in"), tmp_path / "out/model.safetensors"
    assert convert(source, tmp_path / "out") == 0
    after = load(path)
    after["model.norm.weight"][3] += 1
    del after["lm_head.weight"]
    save_file(after, path)
    capsys.readouterr()
    assert convert("--check", tmp_path / "out", "--reader", "mxfp8_ops") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "lm_head.weight is missing" in out
    assert "2 are not as they should be" in out
    assert QUANTIZED[0] not in out


def test_modelopt_input_is_quantized_already(tmp_path, capsys):
    source = save_folder(tmp_path / "in")
    (source / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    assert convert(source, tmp_path / "out") == 1
    assert "is quantized already: it has hf_quant_config.json" in capsys.readouterr().err


@pytest.mark.parametrize("place", [["a"], 3, None, {}])
def test_an_index_with_other_things_than_names(tmp_path, place):
    source = save_folder(tmp_path / "in", shards=2)
    text = json.dumps({"weight_map": {"x": place}})
    (source / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match="which is missing"):
        make_plan(source)


def test_fused_experts_are_ignored_by_name_and_warned_about(tmp_path):
    content = {
        "l.mlp.experts.gate_up_proj": torch.ones(2, 64, 64),
        "l.conv.weight": torch.ones(4, 2, 32),
        "l.q_proj.weight": torch.ones(4, 64),
        "l.f.weight": torch.ones(4, 64).to(torch.float8_e4m3fn),
    }
    save_file(content, tmp_path / "a.safetensors")
    report = api_convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert report["ignored"] == ["l.conv", "l.f", "l.mlp.experts", "lm_head"]
    metadata = header(tmp_path / "b.safetensors")["__metadata__"]
    assert json.loads(metadata["quantization_config"])["ignore"] == report["ignored"]
    experts, scale = report["warnings"]
    assert "1 tensors of fused experts, such as l.mlp.experts.gate_up_proj, were copied" in experts
    assert scale == "l.f.weight is F8_E4M3 already and was copied without a scale"


def test_names_that_modelopt_readers_take_for_ignored(tmp_path):
    save_file(
        {f"l.{n}.weight": torch.ones(32, 32) for n in ("gate", "gate_proj", "up_proj")},
        tmp_path / "a.safetensors",
    )
    for target, expected in (("modelopt", 1), ("compressed-tensors", 0)):
        found = make_plan(tmp_path / "a.safetensors", Options(target=target)).warnings()
        assert len(found) == expected
    found = make_plan(tmp_path / "a.safetensors", Options(target="modelopt")).warnings()
    assert found[0].startswith(
        "l.gate_proj is quantized, but vLLM leaves every module whose name contains l.gate,"
    )


def test_a_plot_without_a_ratio(tmp_path):
    save_file({"a.weight": torch.zeros(4, 64)}, tmp_path / "a.safetensors")
    arguments = (tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--report", tmp_path / "r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert convert(*arguments) == 0


def ranks(*arguments):
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "mxfp8_ops", "convert", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_one_rank_talks(tmp_path):
    source = save_folder(tmp_path / "in", shards=3)
    result = ranks(source, tmp_path / "out", "--json")
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)["tensors"]) == 39


def test_a_rank_that_fails_stops_the_others_with_a_sentence(tmp_path):
    source, output = save_folder(tmp_path / "in", shards=3), tmp_path / "out"
    output.mkdir()
    (output / "x").write_text("")
    result = ranks(source, output)
    assert result.returncode != 0
    assert "--overwrite replaces it" in result.stderr
    assert "[rank" not in result.stderr  # the prefix of a traceback


def test_ranks_that_do_not_find_one_another(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    assert convert(save_folder(tmp_path / "in"), tmp_path / "out") == 1
    assert "WORLD_SIZE is 2, but the ranks do not find one another" in capsys.readouterr().err
