"""A converted checkpoint read by the layers of SGLang itself; see test_checkpoint_engines.sh.

python scripts/checkpoint_engines_sglang.py MODEL WORK      a Hugging Face folder, and one to write to
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import inspect
import itertools
import json
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

import torch

import mxfp8_ops
from mxfp8_ops import testing
from mxfp8_ops.checkpoint import Options, convert
from mxfp8_ops.compat import sglang as compat

# Imported by SGLang, needing libraries of CUDA or another torch, and not called here.
STUBS = ("torchvision", "sgl_kernel")


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules whose every attribute is a mock."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in STUBS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = mock.MagicMock(name=spec.name)
        module.__name__, module.__spec__, module.__path__ = spec.name, spec, []
        module.__version__ = "0"
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def require(condition: bool, what: str) -> None:
    if not condition:
        raise SystemExit(f"failed: {what}")
    print(f"ok: {what}")


def parameters(function: object) -> list[tuple[str, object]]:
    """Names and defaults."""
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]


def main(model: Path, work: Path) -> None:
    sys.meta_path.insert(0, Stubs())
    from safetensors.torch import load_file
    from sglang.kernels.ops.quantization import mxfp8_swizzled_triton
    from sglang.srt.layers.linear import ReplicatedLinear
    from sglang.srt.layers.quantization import (
        fp8_utils,
        get_quantization_config,
        mxfp8_block_convert,
    )
    from sglang.srt.layers.quantization.fp8 import Fp8LinearMethod
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

    convert(model, work / "out", Options(target="mxfp8"))
    content = json.loads((work / "out/config.json").read_text())["quantization_config"]
    config = get_quantization_config(content["quant_method"]).from_config(content)
    require(
        config.get_name() == "mxfp8" and config.is_checkpoint_fp8_serialized,
        f"config.json chooses {type(config).__name__} for MXFP8 checkpoints",
    )
    tensors = load_file(work / "out/model.safetensors")
    original = load_file(model / "model.safetensors")
    read = 0
    for name, scale in tensors.items():
        if not name.endswith(".weight_scale_inv"):
            continue
        module = name.removesuffix(".weight_scale_inv")
        data = tensors[f"{module}.weight"]
        rows, columns = data.shape
        layer = ReplicatedLinear(columns, rows, bias=False, quant_config=config, prefix=module)
        if not isinstance(layer.quant_method, Fp8LinearMethod):
            raise SystemExit(f"failed: {module} is not quantized for SGLang")
        for parameter, tensor in ((layer.weight, data), (layer.weight_scale_inv, scale)):
            if (parameter.shape, parameter.dtype) != (tensor.shape, tensor.dtype):
                raise SystemExit(f"failed: {name}: SGLang expects {parameter.shape}")
            layer.weight_loader(parameter, tensor)
        layer.quant_method.process_weights_after_loading(layer)
        theirs = mxfp8_block_convert.dequant_mxfp8_2d_to_bf16(layer.weight, layer.weight_scale_inv)
        ours = mxfp8_ops.dequantize(*mxfp8_ops.quantize(original[f"{module}.weight"]))
        testing.assert_same_bytes(theirs.detach(), ours)
        read += 1
    require(read > 30, f"{read} layers load, and SGLang dequantizes them to our bytes")
    for module in content["ignored_layers"]:
        layer = ReplicatedLinear(64, 32, bias=False, quant_config=config, prefix=module)
        if not isinstance(layer.quant_method, UnquantizedLinearMethod):
            raise SystemExit(f"failed: SGLang would quantize {module}")
    require(True, f"{len(content['ignored_layers'])} ignored modules stay as they are")

    for ours, theirs in (
        (compat.mxfp8_group_quantize, fp8_utils.mxfp8_group_quantize),
        (compat.mxfp8_quantize_swizzled, mxfp8_swizzled_triton.mxfp8_quantize_swizzled),
    ):
        require(parameters(ours) == parameters(theirs), f"the parameters of {ours.__name__}")
    # Its function exists on Blackwell alone, but not so what it tells torch.compile.
    for shape in ((1, 32), (130, 288), (2, 33, 96)):
        for swizzled, alignment in itertools.product((True, False), (32, 128)):
            x = torch.randn(shape).bfloat16()
            ours = compat.flashinfer_mxfp8_quantize(x, swizzled, alignment)
            theirs = fp8_utils._fake_flashinfer_mxfp8_quantize(x, swizzled, alignment)
            if [(t.shape, t.dtype) for t in ours] != [(t.shape, t.dtype) for t in theirs]:
                raise SystemExit(f"failed: flashinfer_mxfp8_quantize of {shape}, {alignment}")
    require(True, "flashinfer_mxfp8_quantize returns the shapes and dtypes of SGLang's fake")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
