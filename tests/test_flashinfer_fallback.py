"""Whatever is wrong with FlashInfer, quantize returns the contract's bytes and says why."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import torch
from flashinfer_stub import BROKEN, FlashInferStub, install, route_cpu_through_python, uninstall

import mxfp8_ops
from mxfp8_ops import dispatch, platform, reference, testing
from mxfp8_ops.backends import cute_dsl
from mxfp8_ops.errors import BackendUnavailableError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _cpu_through_python():
    library = route_cpu_through_python()
    yield
    library._destroy()
    uninstall()


def blocks(dtype=torch.bfloat16):
    return testing.adversarial_blocks(dtype, random=64)


@pytest.mark.parametrize("case", BROKEN)
def test_the_next_backend_serves_the_call(case, monkeypatch, caplog):
    stub, words = BROKEN[case]
    install(monkeypatch, stub)
    caplog.set_level(logging.INFO, "mxfp8_ops")
    x = blocks()
    expected = reference.quantize(x)

    testing.assert_same_bytes(torch.ops.mxfp8.quantize(x), expected, case)

    lines = [r.getMessage() for r in caplog.records if "cute_dsl" in r.getMessage()]
    assert len(lines) == 1, lines
    assert words in lines[0]
    row = next(row for row in mxfp8_ops.backends("cpu") if row.name == "cute_dsl")
    assert words in row.reason
    if stub.compile_error is None:
        assert "0.6.13" in row.reason, "the reason says which version is needed"
    imports, calls = stub.imports, len(stub.calls)
    assert imports == 1

    caplog.clear()
    for _ in range(3):
        testing.assert_same_bytes(torch.ops.mxfp8.quantize(x), expected, case)
    mxfp8_ops.backends("cpu")
    assert (stub.imports, len(stub.calls)) == (imports, calls), "a later call probed again"
    assert not caplog.records


@pytest.mark.parametrize("case", BROKEN)
def test_a_named_call_raises_the_reason(case, monkeypatch):
    stub, words = BROKEN[case]
    install(monkeypatch, stub)
    with pytest.raises(BackendUnavailableError) as raised:
        mxfp8_ops.quantize(blocks(), backend="cute_dsl")
    assert raised.value.backend == "cute_dsl"
    assert words in raised.value.reason


@pytest.mark.parametrize(
    "version",
    ["0.6.13", "0.6.14", "0.6.18", "0.6.18.post1", "0.7.0", "0.7.1", "0.7.2.post1", "0.7.4"],
)
def test_a_good_version_serves_the_call(version, monkeypatch):
    stub = FlashInferStub(version)
    install(monkeypatch, stub)
    x = torch.randn(5, 96, dtype=torch.float16)
    testing.assert_same_bytes(torch.ops.mxfp8.quantize(x), reference.quantize(x))
    assert [call["backend"] for call in stub.calls] == ["cute-dsl"]


def test_a_renamed_argument_is_a_reason(monkeypatch):
    stub = FlashInferStub("0.9.0")

    def mxfp8_quantize(input, layout=None, alignment=32, backend="auto"):
        raise AssertionError("must not be called")

    monkeypatch.setattr(stub, "_mxfp8_quantize", lambda: mxfp8_quantize)
    install(monkeypatch, stub)
    x = blocks()
    testing.assert_same_bytes(torch.ops.mxfp8.quantize(x), reference.quantize(x))
    assert "is_sf_swizzled_layout" in dispatch.unavailable_reason(cute_dsl.BACKEND, CPU)


def test_the_drop_in_in_its_place_is_not_called(monkeypatch):
    """It ends in our op, which would call it again."""
    from mxfp8_ops.compat.flashinfer import mxfp8_quantize

    stub = FlashInferStub("0.7.2")
    monkeypatch.setattr(stub, "_mxfp8_quantize", lambda: mxfp8_quantize)
    install(monkeypatch, stub)
    x = blocks()
    testing.assert_same_bytes(torch.ops.mxfp8.quantize(x), reference.quantize(x))
    assert "replaced by" in dispatch.unavailable_reason(cute_dsl.BACKEND, CPU)


def test_a_result_of_another_shape_is_a_failure(monkeypatch):
    stub = FlashInferStub("0.9.0")
    monkeypatch.setattr(stub, "_run", lambda x, *args: (x.to(torch.float8_e4m3fn), x.new_zeros(1)))
    install(monkeypatch, stub)
    x = torch.randn(4, 64, dtype=torch.bfloat16)
    testing.assert_same_bytes(torch.ops.mxfp8.quantize(x), reference.quantize(x))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("x"), torch.AcceleratorError("x")])
def test_errors_of_the_device_are_not_blamed_on_the_backend(error, monkeypatch):
    install(monkeypatch, FlashInferStub("0.7.2", compile_error=error))
    with pytest.raises(type(error)):
        torch.ops.mxfp8.quantize(blocks())
    assert dispatch.unavailable_reason(cute_dsl.BACKEND, CPU) is None


def test_a_failure_during_a_capture_says_to_warm_up(monkeypatch):
    """Compiling may be what failed: the backend is not given up for it."""
    install(monkeypatch, FlashInferStub("0.7.2", compile_error=RuntimeError("no driver call")))
    monkeypatch.setattr(platform, "is_capturing", lambda device: True)
    with pytest.raises(
        RuntimeError, match=r"no driver call.* being captured; call mxfp8_ops\.warm"
    ):
        torch.ops.mxfp8.quantize(blocks())
    assert dispatch.unavailable_reason(cute_dsl.BACKEND, CPU) is None


def test_strict_leaves_it_out(monkeypatch):
    stub = FlashInferStub("0.7.2")
    install(monkeypatch, stub)
    monkeypatch.setattr(dispatch, "SETTINGS", dispatch.Settings(backend=None, strict=True))
    x = blocks()
    testing.assert_same_bytes(torch.ops.mxfp8.quantize(x), reference.quantize(x))
    assert not stub.calls


@pytest.mark.parametrize(
    ("found", "setting", "usable"),
    [
        ((9, 0), "", False),
        ((10, 0), "", True),
        ((12, 0), "", True),
        ((9, 0), "9.0", True),
        ((8, 9), "9.0", False),
    ],
)
def test_capability_gate(found, setting, usable, monkeypatch):
    monkeypatch.setenv("MXFP8_OPS_CUTE_DSL_MIN_CAPABILITY", setting)
    monkeypatch.setattr(platform, "compute_capability", lambda index: found)
    monkeypatch.setattr(platform, "is_rocm", lambda: False)
    reason = cute_dsl.device_reason(torch.device("cuda", 0))
    assert (reason is None) == usable
    if not usable:
        assert f"{found[0]}.{found[1]}" in reason


@pytest.mark.parametrize("setting", ["nine", "9", "9.0a"])
def test_a_bad_gate_says_what_is_allowed(setting, monkeypatch):
    monkeypatch.setenv("MXFP8_OPS_CUTE_DSL_MIN_CAPABILITY", setting)
    with pytest.raises(ValueError, match=rf"like '9\.0', got '{setting}'"):
        cute_dsl.minimum_capability()


def test_other_devices_do_not_import_flashinfer():
    code = (
        "import sys, torch, mxfp8_ops\n"
        "mxfp8_ops.quantize(torch.randn(2, 32))\n"
        "print(mxfp8_ops.backends('cpu'))\n"
        "assert not [m for m in sys.modules if m.startswith(('flashinfer', 'cutlass'))]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "it runs on NVIDIA GPUs, got a tensor on cpu" in done.stdout
