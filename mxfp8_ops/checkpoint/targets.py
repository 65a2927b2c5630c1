"""The on-disk formats: names of tensors and what config.json says, as engines read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .._version import __version__
from .source import QUANTIZED_MARK


@dataclass(frozen=True)
class Target:
    """A format.

    Attributes:
        name: as in ``quant_method`` of config.json.
        readers: engines that read it.
        scale_suffix: the scale of ``<module>.weight`` is ``<module>.<scale_suffix>``.
        config: names of the modules that are not quantized to ``quantization_config`` of config.json.
        other_files: the same to the contents of further JSON files.
        excludes_substrings: whether a reader leaves every module whose name contains an ignored one.
    """

    name: str
    readers: str
    scale_suffix: str
    config: Callable[[Sequence[str]], dict[str, Any]]
    other_files: Callable[[Sequence[str]], dict[str, Any]] = lambda ignore: {}
    excludes_substrings: bool = False

    def scale_name(self, weight: str) -> str:
        """Name of the scale that belongs to the tensor ``weight``."""
        return f"{weight.removesuffix('.weight')}.{self.scale_suffix}"


def _compressed_tensors(ignore: Sequence[str]) -> dict[str, Any]:
    arguments = {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "strategy": "group",
        "group_size": 32,
        # vLLM recognises MXFP8 by this; without it the groups are taken for another format.
        "scale_dtype": "torch.uint8",
        "zp_dtype": None,
    }
    group = {
        "targets": ["Linear"],
        "weights": {**arguments, "dynamic": False},
        "input_activations": {**arguments, "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "mxfp8-quantized",
        "quantization_status": "compressed",
        "ignore": list(ignore),
        "config_groups": {"group_0": group},
    }


# vLLM's reader of hf_quant_config.json accepts this producer alone.
_PRODUCER = {"name": "modelopt", "version": f"mxfp8_ops {__version__}"}


def _modelopt(ignore: Sequence[str]) -> dict[str, Any]:
    return {
        "quant_method": "modelopt",
        "quant_algo": "MXFP8",
        "ignore": list(ignore),
        "producer": _PRODUCER,
    }


def _modelopt_files(ignore: Sequence[str]) -> dict[str, Any]:
    quantization = {
        "quant_algo": "MXFP8",
        "group_size": 32,
        "kv_cache_quant_algo": None,  # both of these keys are required, empty or not
        "exclude_modules": list(ignore),
    }
    return {QUANTIZED_MARK: {"producer": _PRODUCER, "quantization": quantization}}


def _mxfp8(ignore: Sequence[str]) -> dict[str, Any]:
    return {
        "quant_method": "mxfp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [1, 32],
        "scale_fmt": "ue8m0",
        "ignored_layers": list(ignore),
        "modules_to_not_convert": list(ignore),
    }


TARGETS = {
    target.name: target
    for target in (
        Target("compressed-tensors", "vLLM, transformers", "weight_scale", _compressed_tensors),
        Target("modelopt", "vLLM", "weight_scale", _modelopt, _modelopt_files, True),
        Target("mxfp8", "SGLang", "weight_scale_inv", _mxfp8),
    )
}
