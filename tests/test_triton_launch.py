"""What selects a compiled Triton kernel, and what its failures mean. Triton itself is not needed."""

from types import SimpleNamespace

import pytest
import torch

from mxfp8_ops import errors, platform
from mxfp8_ops.backends import triton, triton_launch

VARIANT = triton_launch.Variant("kernel", 1, (), {"PDL": False})


class Compiled:
    def __getitem__(self, grid):
        return self


@pytest.fixture
def compile_with(monkeypatch):
    """Let ``warmup`` of every kernel be the given function."""
    monkeypatch.setattr(triton_launch, "_variants", {})

    def use(warmup):
        kernels = SimpleNamespace(kernel=SimpleNamespace(warmup=warmup))
        monkeypatch.setattr(triton_launch, "kernels", lambda: kernels)

    return use


@pytest.mark.parametrize("rocm", [False, True])
def test_a_kernel_for_less_than_2_gib_does_not_serve_more(compile_with, monkeypatch, rocm):
    """Triton compiles 32-bit offsets for AMD where the storage of the first call was that small."""
    monkeypatch.setattr(platform, "is_rocm", lambda: rocm)
    compile_with(lambda *args, **options: Compiled())

    def compiled(n):
        return triton_launch._compile(VARIANT, [torch.empty(n, dtype=torch.uint8, device="meta")])

    small, limit, large = compiled(1 << 20), compiled((1 << 31) - 1), compiled(1 << 31)
    assert small is limit
    assert (large is small) is not rocm
    assert compiled(1 << 33) is large


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.AcceleratorError("CUDA error: unspecified launch failure", 719),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("Triton Error [HIP]: an illegal memory access was encountered"),
    ],
)
def test_faults_of_the_device_are_not_those_of_the_backend(compile_with, error):
    def fail(*args, **options):
        raise error

    compile_with(fail)
    with pytest.raises(type(error)) as raised:
        triton_launch._compile(VARIANT, [torch.empty(32, device="meta")])
    assert raised.value is error


def test_a_kernel_that_does_not_compile_is_a_reason(compile_with):
    def fail(*args, **options):
        raise TypeError("no such instruction")

    compile_with(fail)
    with pytest.raises(errors.BackendUnavailableError, match="TypeError: no such instruction"):
        triton_launch._compile(VARIANT, [torch.empty(32, device="meta")])


def test_the_check_of_fnuz_does_not_break_a_capture(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match=r"being captured; call mxfp8_ops\.warmup\(\)"):
        triton._fnuz_is_exact(0)
