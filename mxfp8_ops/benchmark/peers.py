"""Quantizers of other projects, where they can be imported."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

Peer = tuple[Callable[[torch.Tensor], Any], str]
"""``(call, scale layout)``."""


def _torchao() -> dict[str, Peer]:
    kernels = importlib.import_module("torchao.prototype.mx_formats.kernels")
    call = kernels.triton_to_mxfp8_dim0
    return {"torchao": (lambda x: call(x, inner_block_size=32), "linear")}


def _flashinfer() -> dict[str, Peer]:
    quantize = importlib.import_module("flashinfer").mxfp8_quantize
    # Its backend "cuda" computes nothing below compute capability 10.0.
    backend = "cuda" if torch.cuda.get_device_capability() >= (10, 0) else "cute-dsl"
    return {
        f"flashinfer {backend} {layout}": (
            functools.partial(
                quantize, is_sf_swizzled_layout=swizzled, alignment=32, backend=backend
            ),
            layout,
        )
        for swizzled, layout in ((False, "linear"), (True, "swizzled_32_4_4"))
    }


def _transformer_engine() -> dict[str, Peer]:
    pytorch = importlib.import_module("transformer_engine.pytorch")
    types = importlib.import_module("transformer_engine_torch").DType
    quantizer = pytorch.MXFP8Quantizer(types.kFloat8E4M3, columnwise=False)
    return {"transformer_engine": (quantizer, "linear")}


_PEERS = {
    "torchao": _torchao,
    "flashinfer": _flashinfer,
    "transformer_engine": _transformer_engine,
}


def find_peers(device: torch.device, echo: Callable[[str], None]) -> dict[str, Peer]:
    """Name to quantizer of every peer that can be imported; all of them need a GPU."""
    found: dict[str, Peer] = {}
    if device.type != "cuda":
        return found
    for name, make in _PEERS.items():
        try:
            found |= make()
        except Exception as error:  # a broken package may raise anything
            echo(f"{name} left out: {type(error).__name__}")
    return found
