"""One of two ranks: runs every case of ``test_distributed.py`` on DTensors, over gloo on the CPU.

    python distributed_worker.py RANK STORE

Prints a JSON object: for each case the placements of the results, or what differed.
"""

from __future__ import annotations

import json
import sys
import traceback

import torch
import torch.distributed as dist  # noqa: TID253
from test_distributed import CASES, Case
from torch.distributed.device_mesh import init_device_mesh  # noqa: TID253
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard  # noqa: TID253

import mxfp8_ops
import mxfp8_ops.distributed
from mxfp8_ops.testing import assert_same_bytes

WORLD = 2


def parse(text: str) -> list:
    """``"R/S1"``: replicated over the first mesh dimension, dimension 1 sharded over the second."""
    kinds = {"R": lambda _: Replicate(), "P": lambda _: Partial(), "S": lambda d: Shard(int(d))}
    return [kinds[part[0]](part[1:]) for part in text.split("/")]


def text_of(placements) -> str:
    return "/".join(f"S{p.dim}" if p.is_shard() else "RP"[p.is_partial()] for p in placements)


def local_part(whole: torch.Tensor, placements: list, rank: int) -> torch.Tensor:
    last = placements[-1]  # the other mesh dimensions are of size 1
    if last.is_shard():
        return whole.chunk(WORLD, last.dim)[rank].clone(memory_format=torch.contiguous_format)
    return whole / WORLD if last.is_partial() else whole


def distribute(whole: torch.Tensor, placements: list, meshes: dict, rank: int) -> DTensor:
    return DTensor.from_local(
        local_part(whole, placements, rank),
        meshes[len(placements)],
        placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


def run(case: Case, meshes: dict, rank: int) -> str:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(case.shape, generator=generator) * 2.0 ** torch.randint(
        -20, 20, case.shape, generator=generator
    )
    arguments = [x.bfloat16()]
    if case.operation.startswith("dequantize"):
        layout = case.options.get("scale_layout", "linear")
        arguments = list(mxfp8_ops.quantize(arguments[0], scale_layout=layout))
    options = dict(case.options)
    if "dtype" in options:
        options["dtype"] = getattr(torch, options["dtype"])
    op = getattr(torch.ops.mxfp8, case.operation)
    expected = op(*arguments, **options)
    placed = [
        distribute(argument, parse(text), meshes, rank)
        for argument, text in zip(arguments, case.inputs.split(), strict=True)
    ]
    if placed[0].dtype == torch.bfloat16:
        placed[0].requires_grad_()
    actual = op(*placed, **options)
    if isinstance(actual, torch.Tensor):
        expected, actual = (expected,), (actual,)
    for e, a in zip(expected, actual, strict=True):
        assert not a.requires_grad
        assert (a.shape, a.dtype, a.stride()) == (e.shape, e.dtype, e.stride())
        local = a.to_local()
        assert_same_bytes(local, local_part(e, list(a.placements), rank), f"rank {rank}")
        # Gloo moves no FP8: the parts are put together as bytes.
        width = local.element_size()
        parts = DTensor.from_local(
            local.view(torch.uint8),
            a.device_mesh,
            a.placements,
            run_check=False,
            shape=(*e.shape[:-1], e.shape[-1] * width),
            stride=(*(s * width for s in e.stride()[:-1]), 1),
        )
        assert torch.equal(parts.full_tensor(), e.view(torch.uint8)), "the whole differs"
    return " ".join(text_of(a.placements) for a in actual)


def main() -> None:
    rank, store = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    meshes = {1: init_device_mesh("cpu", (WORLD,)), 2: init_device_mesh("cpu", (1, WORLD))}
    results = {}
    for case in CASES:
        try:
            results[case.name] = run(case, meshes, rank)
        except Exception:
            results[case.name] = traceback.format_exc()
    print(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
