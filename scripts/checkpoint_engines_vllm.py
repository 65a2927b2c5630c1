"""Converted checkpoints read by the code of vLLM itself; see test_checkpoint_engines.sh."""

from __future__ import annotations

import torch
from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors
from vllm.model_executor.layers.quantization.modelopt import ModelOptMxFp8Config
from vllm.model_executor.layers.quantization.utils import mxfp8_utils

import mxfp8_ops
from mxfp8_ops import testing
from mxfp8_ops.checkpoint import TARGETS
from mxfp8_ops.compat import vllm as compat

IGNORED = ["lm_head", "model.embed_tokens"]


def require(condition: bool, what: str) -> None:
    if not condition:
        raise SystemExit(f"failed: {what}")
    print(f"ok: {what}")


def main() -> None:
    config = compressed_tensors.CompressedTensorsConfig.from_config(
        TARGETS["compressed-tensors"].config(IGNORED)
    )
    parts = config.target_scheme_map["Linear"]
    scheme = config._get_scheme_from_parts(
        weight_quant=parts["weights"],
        input_quant=parts["input_activations"],
        format=parts.get("format"),
    )
    name = type(scheme).__name__
    require(name == "CompressedTensorsW8A8Mxfp8", f"compressed-tensors chooses {name}")
    require(config.ignore == IGNORED, "compressed-tensors leaves out the ignored modules")

    modelopt = TARGETS["modelopt"]
    files = modelopt.other_files(IGNORED)
    forms = {
        "config.json of modelopt": modelopt.config(IGNORED),
        "hf_quant_config.json of modelopt": files["hf_quant_config.json"],
        "config.json of mxfp8": TARGETS["mxfp8"].config(IGNORED),
    }
    for what, content in forms.items():
        parsed = ModelOptMxFp8Config.from_config(content)
        good = (
            parsed.is_checkpoint_mxfp8_serialized
            and parsed.is_layer_excluded("lm_head")
            and not parsed.is_layer_excluded("model.layers.0.self_attn.q_proj")
        )
        require(good, f"{what} is MXFP8 with the ignored modules left out")
    chosen = ModelOptMxFp8Config.override_quantization_method(
        forms["config.json of modelopt"], None
    )
    require(chosen == "modelopt_mxfp8", f"config.json of modelopt chooses {chosen}")

    x = testing.random_magnitudes(torch.bfloat16, 8192)
    x = torch.cat([x, testing.edge_blocks(torch.bfloat16)])
    x = x[x.isfinite().all(-1)]
    data, scale = mxfp8_ops.quantize(x)
    scale = scale.view(torch.uint8)
    ours = mxfp8_ops.dequantize(data, scale.view(torch.float8_e8m0fnu))
    theirs = mxfp8_utils.dequant_mxfp8_to_bf16(data, scale)
    testing.assert_same_bytes(theirs, ours)
    require(True, f"vLLM's dequantization gives our bytes, {len(x)} finite blocks")
    theirs = mxfp8_utils._mxfp8_e4m3_quantize_torch(x)
    testing.assert_same_bytes(compat.mxfp8_e4m3_quantize(x), theirs)
    require(True, f"vLLM's quantization gives our bytes, {len(x)} finite blocks")


if __name__ == "__main__":
    main()
