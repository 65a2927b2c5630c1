"""What selects a compiled Triton kernel, and what its failures mean. Triton itself is not needed."""

from types import SimpleNamespace

import pytest
import torch
from cases import ELEMENTS

from mxfp8_ops import errors, platform, reference
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
    ("device", "rocm", "warps", "most"),
    [
        ("cuda", False, 4, 2**31 - 1),
        ("cuda", True, 2, 2**25 - 1),  # HIP takes fewer than 2**32 threads, 64 in a wave
        ("xpu", False, 2, 2**25 - 1),
    ],
)
def test_a_grid_beyond_the_runtime_is_refused_before_compiling(
    monkeypatch, device, rocm, warps, most
):
    monkeypatch.setattr(platform, "is_rocm", lambda: rocm)
    assert triton_launch._largest_grid(torch.device(device), warps) == most
    monkeypatch.setattr(triton_launch, "_largest_grid", lambda device, warps: 5)
    x = torch.empty(32, device="meta")
    with pytest.raises(errors.BackendUnavailableError, match="6 programs of 1 warps exceed"):
        triton_launch.make_plan(VARIANT, 6, [x], [x])


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("scaling_mode", ["rceil", "floor"])
def test_the_check_of_fnuz_sees_every_code(element, scaling_mode):
    x = triton.fnuz_blocks(element, torch.device("cpu"))
    data, _ = reference.quantize(x, dtype=element, scaling_mode=scaling_mode)
    codes = torch.arange(256, dtype=torch.uint8).view(element)
    assert data.view(torch.uint8).unique().tolist() == [
        code for code, value in enumerate(codes.float()) if value.isfinite() or code == 0x7F
    ]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.AcceleratorError("CUDA error: unspecified launch failure", 719),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("Triton Error [HIP]: an illegal memory access was encountered"),
        RuntimeError("Triton Error [HIP]: Code: 719, unspecified launch failure"),
        RuntimeError("Triton Error [ZE]: 0x70000001"),
        RuntimeError("Triton Error [ZE]: 0x70000003"),
        RuntimeError("level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)"),
        RuntimeError(
            "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"
        ),
    ],
)
def test_faults_of_the_device_are_not_those_of_the_backend(compile_with, error):
    def fail(*args, **options):
        raise error

    compile_with(fail)
    with pytest.raises(type(error)) as raised:
        triton_launch._compile(VARIANT, [torch.empty(32, device="meta")])
    assert raised.value is error


def test_only_a_lost_device_ends_a_verification():
    assert errors.is_lost_device(RuntimeError("20 (UR_RESULT_ERROR_DEVICE_LOST)"))
    assert not errors.is_lost_device(torch.OutOfMemoryError("CUDA out of memory"))
    assert not errors.is_lost_device(RuntimeError("39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"))


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
