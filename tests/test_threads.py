"""Threads, forked and spawned processes."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import mxfp8_ops
from mxfp8_ops import reference, testing

ROOT = Path(__file__).parents[1]


def test_threads_make_the_first_call_together():
    code = """
        import threading, torch
        import mxfp8_ops
        from mxfp8_ops import reference, testing
        barrier, failures = threading.Barrier(24), []
        def work(i):
            x = torch.randn(3 + i, 64).to([torch.bfloat16, torch.float16, torch.float32][i % 3])
            backend = [None, "torch"][i % 2]
            barrier.wait()
            try:
                testing.assert_same_bytes(mxfp8_ops.quantize(x, backend=backend), reference.quantize(x))
                mxfp8_ops.backends("cpu")
            except BaseException as error:
                failures.append(error)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(24)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not failures, failures
        print("fine")
    """
    for backend in ("", "torch"):
        result = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "MXFP8_OPS_BACKEND": backend},
            timeout=300,
        )
        assert result.stdout.strip() == "fine", result.stderr


def test_concurrent_large_calls():
    inputs = [torch.randn(512, 1024) for _ in range(8)]
    expected = [reference.quantize(x) for x in inputs]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for result, wanted in zip(pool.map(mxfp8_ops.quantize, inputs), expected, strict=True):
            testing.assert_same_bytes(result, wanted)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_thread_count_changes_no_byte(threads):
    x = torch.randn(1030, 992)
    expected = reference.quantize(x, scale_layout="swizzled_32_4_4")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        testing.assert_same_bytes(mxfp8_ops.quantize(x, scale_layout="swizzled_32_4_4"), expected)
    finally:
        torch.set_num_threads(before)


def _quantized_bytes(x: torch.Tensor) -> bytes:
    data, scale = mxfp8_ops.quantize(x)
    return data.view(torch.uint8).numpy().tobytes() + scale.view(torch.uint8).numpy().tobytes()


def _child(x: torch.Tensor, queue) -> None:
    queue.put(_quantized_bytes(x))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_processes(method):
    x = torch.randn(64, 96)
    expected = _quantized_bytes(x)  # before the fork, so that all state exists
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    child = context.Process(target=_child, args=(x, queue))
    child.start()
    try:
        child.join(120)
        assert child.exitcode == 0
        assert queue.get() == expected
    finally:
        child.kill()
