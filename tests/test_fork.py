"""Forked children: locks of other threads, thread pools of the parent, DataLoader workers."""

from __future__ import annotations

import os
import sys

import pytest
from cases import check_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason=f"{sys.platform} has no fork")

# Every child is given up after a minute: what a broken fork does is to wait for ever.
CHILD = """
import os, signal, sys, threading, torch
import mxfp8_ops
from mxfp8_ops import dispatch, reference
from mxfp8_ops.testing import assert_same_bytes

def in_child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            work()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def check(code: str) -> None:
    assert check_python(CHILD + code).strip() == "fine"


def test_lock_held_by_another_thread_at_the_fork():
    check("""
held, done = threading.Event(), threading.Event()

def hold():
    with dispatch._lock:
        held.set()
        done.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()

def work():
    x = torch.randn(3, 64)
    assert_same_bytes(mxfp8_ops.quantize(x, backend="torch"), reference.quantize(x))
    mxfp8_ops.backends("cpu")
    dispatch.mark_unavailable(dispatch.BACKENDS["torch"], torch.device("meta"), "a test")

code = in_child(work)
done.set()
thread.join()
assert code == 0, code
with dispatch._lock:
    print("fine")
""")


def test_children_of_children_and_a_parent_that_goes_on():
    check("""
x = torch.randn(5, 64)
expected = reference.quantize(x)

def grandchild():
    assert_same_bytes(mxfp8_ops.quantize(x), expected)

def child():
    assert in_child(grandchild) == 0
    grandchild()

assert in_child(child) == 0
grandchild()
print("fine")
""")


def test_one_thread_in_a_child_of_a_parent_with_threads():
    """torch's thread pool does not survive a fork; workers that inherit a used one ask for one thread."""
    check("""
x = torch.randn(2048, 1024)
torch.set_num_threads(2)
expected = mxfp8_ops.quantize_both(x)

def work():
    torch.set_num_threads(1)
    assert_same_bytes(mxfp8_ops.quantize_both(x), expected)
    pair = expected[:2]
    assert_same_bytes(mxfp8_ops.dequantize(*pair), reference.dequantize(*pair))

assert in_child(work) == 0
assert_same_bytes(mxfp8_ops.quantize_both(x), expected)
print("fine")
""")


def test_threads_in_a_child_of_a_parent_without():
    check("""
x = torch.randn(2048, 1024)

def work():
    torch.set_num_threads(2)
    assert_same_bytes(mxfp8_ops.quantize(x), mxfp8_ops.quantize(x, backend="cpu"))

assert in_child(work) == 0
print("fine")
""")


def test_dataloader_workers():
    """They quantize after the parent has used its threads, and send FP8 tensors back."""
    check("""
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.randn(512, 1024, generator=torch.Generator().manual_seed(index))

def quantized(rows):
    return mxfp8_ops.quantize(torch.stack(rows), scale_layout="swizzled_32_4_4")

expected = [quantized([Rows()[i], Rows()[i + 1]]) for i in (0, 2, 4)]
loader = torch.utils.data.DataLoader(
    Rows(), batch_size=2, num_workers=2, multiprocessing_context="fork", collate_fn=quantized, timeout=60
)
for got, wanted in zip(loader, expected, strict=True):
    assert_same_bytes(got, wanted)
print("fine")
""")
