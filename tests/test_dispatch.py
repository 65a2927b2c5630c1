"""The dispatcher: order per platform, cached reasons, fallback with the same bytes."""

from __future__ import annotations

import logging
import pickle

import pytest
import torch
from cases import CPU_BACKENDS, check_python, run_python

import mxfp8_ops
from mxfp8_ops import dispatch, platform, reference
from mxfp8_ops.backends import Backend
from mxfp8_ops.errors import BackendUnavailableError
from mxfp8_ops.ops import OPERATIONS
from mxfp8_ops.testing import assert_same_bytes


@pytest.fixture
def fresh(monkeypatch):
    """A dispatcher without memory or forced backend."""
    monkeypatch.setattr(dispatch, "_routes", {})
    monkeypatch.setattr(dispatch, "_replays", {})
    monkeypatch.setattr(dispatch, "_reasons", {})
    monkeypatch.setattr(dispatch, "SETTINGS", dispatch.Settings(None, False))
    return monkeypatch


def backend(name, launch, reason=None, **options):
    return Backend(name, (), {"quantize": launch}, reason or (lambda device: None), **options)


def use(fresh, *backends):
    table = {b.name: b for b in backends} | {"torch": dispatch.BACKENDS["torch"]}
    fresh.setattr(dispatch, "BACKENDS", table)
    fresh.setattr(dispatch, "preference", lambda device: tuple(table))
    return dispatch._dispatcher_kernel(OPERATIONS["quantize"])


X = torch.randn(3, 64)
EXPECTED = reference.quantize(X)


def test_errors_come_back_from_worker_processes():
    error = pickle.loads(pickle.dumps(BackendUnavailableError("cuda", "it is too old")))
    assert (error.backend, error.reason) == ("cuda", "it is too old")
    assert str(error) == "backend 'cuda' is not available: it is too old"


def test_backends_of_a_device_that_does_not_answer(fresh):
    def broken(index):
        raise RuntimeError("no driver")

    fresh.setattr(platform, "compute_capability", broken)
    reasons = {row.name: row.reason for row in mxfp8_ops.backends("cuda:0")}
    assert "no driver" in reasons["cute_dsl"]
    assert reasons["cuda"] is not None
    assert reasons["torch"] is None


def never(*args, **kwargs):
    raise AssertionError("this backend must not be launched")


@pytest.mark.parametrize(
    ("rocm", "capability", "order"),
    [
        (False, (10, 0), ("cute_dsl", "cuda", "triton", "torch")),
        (False, (12, 0), ("cute_dsl", "cuda", "triton", "torch")),
        (False, (9, 0), ("cuda", "triton", "torch")),
        (False, (8, 0), ("cuda", "triton", "torch")),
        (True, (9, 4), ("triton", "torch")),
    ],
)
def test_order_on_devices_of_type_cuda(monkeypatch, rocm, capability, order):
    monkeypatch.setattr(platform, "is_rocm", lambda: rocm)
    monkeypatch.setattr(platform, "compute_capability", lambda index: capability)
    assert dispatch.preference(torch.device("cuda", 0)) == order


def test_order_on_other_devices():
    assert dispatch.preference(torch.device("cpu")) == ("cpu", "torch")
    assert dispatch.preference(torch.device("xpu", 0)) == ("xpu", "triton", "torch")
    assert dispatch.preference(torch.device("mps")) == ("torch",)


@pytest.mark.parametrize("error", [AssertionError, OSError, SystemExit])
def test_a_probe_runs_once_and_anything_it_raises_is_a_reason(fresh, error):
    calls = []

    def probe(device):
        calls.append(device)
        raise error("driver too old")

    kernel = use(fresh, backend("cuda", never, probe))
    for _ in range(3):
        assert_same_bytes(kernel(X), EXPECTED)
    assert len(calls) == 1
    reason = dispatch.unavailable_reason(dispatch.BACKENDS["cuda"], X.device)
    assert f"{error.__name__}: driver too old" in reason


def test_a_call_seen_before_is_replayed_until_its_backend_fails(fresh):
    served = {}

    def launch(x, **options):
        return served.setdefault(x.shape, reference.quantize(x, **options))

    replays = {"quantize": lambda x, **options: served.get(x.shape)}
    fast = backend("cuda", launch, replays=replays)
    kernel = use(fresh, fast)
    first = kernel(X)
    assert kernel(X)[0] is first[0]
    with pytest.raises(ValueError, match="multiple of 32"):
        kernel(X[:, :33])
    dispatch.mark_unavailable(fast, X.device, "broken")
    again = kernel(X)
    assert again[0] is not first[0]
    assert_same_bytes(again, EXPECTED)


def test_a_failing_launcher_is_left_out_with_one_warning_and_the_same_bytes(fresh, caplog):
    calls = []

    def launch(*args, **kwargs):
        calls.append(1)
        raise BackendUnavailableError("cuda", "the compiler is missing")

    kernel = use(fresh, backend("cuda", launch))
    with caplog.at_level(logging.WARNING, "mxfp8_ops"):
        for _ in range(3):
            assert_same_bytes(kernel(X), EXPECTED)
    assert len(calls) == 1
    assert [r.getMessage() for r in caplog.records if "the compiler is missing" in r.getMessage()]
    assert len(caplog.records) == 1


def test_an_unsupported_request_goes_to_the_next_and_leaves_the_backend_in(fresh):
    served = []

    def launch(*args, **kwargs):
        served.append(kwargs)
        return reference.quantize(*args, **kwargs)

    def unsupported(operation, *args, **kwargs):
        return "only rceil" if kwargs.get("scaling_mode", "rceil") != "rceil" else None

    kernel = use(fresh, backend("cuda", launch, unsupported_reason=unsupported))
    expected = reference.quantize(X, scaling_mode="floor")
    assert_same_bytes(kernel(X, scaling_mode="floor"), expected)
    assert served == []
    assert_same_bytes(kernel(X), EXPECTED)
    assert served == [{}]


def test_strict_leaves_out_a_backend_that_deviates(fresh):
    kernel = use(fresh, backend("cute_dsl", never, deviation="non-finite blocks come back finite"))
    fresh.setattr(dispatch, "SETTINGS", dispatch.Settings(None, True))
    assert_same_bytes(kernel(X), EXPECTED)


def test_a_named_backend_serves_under_strict_though_it_deviates(fresh):
    served = []

    def launch(*args, **kwargs):
        served.append(1)
        return reference.quantize(*args, **kwargs)

    kernel = use(fresh, backend("cute_dsl", launch, deviation="non-finite blocks come back finite"))
    fresh.setattr(dispatch, "SETTINGS", dispatch.Settings("cute_dsl", True))
    assert_same_bytes(kernel(X), EXPECTED)
    assert served == [1]


@pytest.mark.parametrize("name", ["bogus", "cute_dsl"])
def test_the_table_has_no_chosen_backend_where_the_named_one_cannot_serve(fresh, name):
    fresh.setattr(dispatch, "SETTINGS", dispatch.Settings(name, False))
    table = mxfp8_ops.backends("cpu")
    assert {row.name for row in table} == set(dispatch.BACKENDS)
    assert not any(row.chosen for row in table)
    backends, reason = dispatch.served_by("quantize", X.device)
    assert backends == ()
    assert repr(name) in reason


def test_empty_input_launches_nothing(fresh):
    data, scale = use(fresh, backend("cuda", never))(torch.empty(0, 64))
    assert data.shape == (0, 64)
    assert scale.shape == (0, 2)


@pytest.mark.parametrize("name", ["cuda", "cute_dsl", "triton", "xpu"])
def test_a_named_backend_never_falls_back(name):
    with pytest.raises(BackendUnavailableError, match=name):
        mxfp8_ops.quantize(X, backend=name)


def test_table_shows_every_backend_with_a_reason_or_available():
    table = mxfp8_ops.backends("cpu")
    assert {row.name for row in table} == set(dispatch.BACKENDS)
    assert sum(row.chosen for row in table) == 1
    assert len(str(table).splitlines()) == len(table)
    assert all((row.reason or "available") in str(table) for row in table)


CALL = """
import torch, mxfp8_ops
from mxfp8_ops import dispatch, reference
from mxfp8_ops.testing import assert_same_bytes
x = torch.randn(2, 64)
assert_same_bytes(torch.ops.mxfp8.quantize(x), reference.quantize(x))
print(dispatch.routes("quantize", x.device)[0].name, dispatch.SETTINGS.strict)
"""


@pytest.mark.parametrize(
    ("name", "strict", "expected"),
    [
        ("torch", "", "torch False"),
        (" torch ", "1", "torch True"),
        ("", "0", f"{CPU_BACKENDS[0]} False"),
        ("auto", "TRUE", f"{CPU_BACKENDS[0]} True"),
        ("auto", "no", f"{CPU_BACKENDS[0]} False"),
        (CPU_BACKENDS[0], "Off", f"{CPU_BACKENDS[0]} False"),
    ],
)
def test_environment_chooses_a_backend(name, strict, expected):
    assert check_python(CALL, MXFP8_OPS_BACKEND=name, MXFP8_OPS_STRICT=strict).strip() == expected


@pytest.mark.parametrize("name", ["bogus", "Torch", "AUTO", "torch,cpu"])
def test_an_unknown_name_in_the_environment_lists_the_valid_ones(name):
    """On the first call and not on import: a wrong setting does not stop what needs no backend."""
    done = run_python("import mxfp8_ops; print('imported')\n" + CALL, MXFP8_OPS_BACKEND=name)
    assert done.returncode != 0
    assert done.stdout.strip() == "imported"
    error = done.stderr.strip().splitlines()[-1]
    assert error.startswith("ValueError: MXFP8_OPS_BACKEND must be one of")
    assert error.endswith(f"got '{name}'")
    for valid in (*dispatch.BACKENDS, "auto"):
        assert repr(valid) in error


def test_a_backend_of_the_environment_that_cannot_serve_is_an_error():
    """Only for the operations that it has an op for: cute_dsl has none for dequantize."""
    done = run_python(
        """
import torch, mxfp8_ops
pair = mxfp8_ops.quantize(torch.ones(2, 32), backend="torch")
print(mxfp8_ops.dequantize(*pair).sum().item(), any(row.chosen for row in mxfp8_ops.backends("cpu")))
torch.ops.mxfp8.quantize(torch.ones(2, 32))
""",
        MXFP8_OPS_BACKEND="cute_dsl",
    )
    assert done.returncode != 0
    assert done.stdout.strip() == "64.0 False"
    assert "BackendUnavailableError: backend 'cute_dsl' is not available" in done.stderr
