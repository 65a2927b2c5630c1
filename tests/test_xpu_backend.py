"""The XPU backends without Intel GPUs: fakes, order, reasons, probes, what is never imported."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from cases import load_setup
from torch._subclasses.fake_tensor import FakeTensorMode

from mxfp8_ops import BackendUnavailableError, dispatch, formats, native, platform, reference
from mxfp8_ops.backends import xpu, xpu_vllm
from mxfp8_ops.ops import OPERATIONS

XPU = torch.device("xpu", 0)
OPTIONS = [
    {"scale_layout": layout, "alignment": alignment}
    for layout in formats.SCALE_LAYOUTS
    for alignment in (None, 128)
]


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def intel_gpu(monkeypatch):
    """A torch that says that it drives one Intel GPU, and empty caches of the dispatcher."""
    monkeypatch.setattr(torch._C, "_has_xpu", True)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(dispatch, "_reasons", {})
    monkeypatch.setattr(dispatch, "_routes", {})
    monkeypatch.setattr(dispatch, "SETTINGS", dispatch.Settings(None, False))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("backend", [None, *OPERATIONS["quantize"].backends])
def test_quantize_and_dequantize_on_fake_xpu_tensors(backend, options):
    shape = (2, 70, 96)
    data_shape, scale_shape = formats.quantized_shapes(shape, **options)
    with FakeTensorMode():
        x = torch.empty(shape, device="xpu", dtype=torch.bfloat16)
        data, scale = OPERATIONS["quantize"].op(backend)(x, **options)
        assert (data.shape, scale.shape) == (data_shape, scale_shape)
        assert (data.dtype, scale.dtype) == (torch.float8_e4m3fn, torch.float8_e8m0fnu)
        assert data.device.type == scale.device.type == "xpu"
        if backend in (None, *OPERATIONS["dequantize"].backends):
            op = OPERATIONS["dequantize"].op(backend)
            back = op(data, scale, scale_layout=options["scale_layout"])
            assert (back.shape, back.dtype, back.device.type) == (
                data_shape,
                torch.bfloat16,
                "xpu",
            )


@pytest.mark.parametrize("operation", ["quantize_columnwise", "quantize_both"])
def test_transposing_operations_on_fake_xpu_tensors(operation):
    for backend in (None, *OPERATIONS[operation].backends):
        with FakeTensorMode():
            outputs = OPERATIONS[operation].op(backend)(torch.empty(64, 96, device="xpu"))
        assert all(output.device.type == "xpu" for output in outputs)
        assert outputs[-2].shape == (96, 64)


def test_scale_operations_on_fake_xpu_tensors():
    with FakeTensorMode():
        scale = torch.empty(70, 3, device="xpu", dtype=torch.float8_e8m0fnu)
        swizzled = torch.ops.mxfp8.swizzle_scale(scale, "swizzled_32_4_4")
        back = torch.ops.mxfp8.unswizzle_scale(swizzled, 70, 3, "swizzled_32_4_4")
    assert (swizzled.shape, back.shape) == ((128, 4), (70, 3))
    assert swizzled.device.type == back.device.type == "xpu"


def test_order_of_the_backends_on_xpu(intel_gpu, monkeypatch):
    assert dispatch.preference(XPU) == ("xpu", "triton", "torch")
    reasons = dict.fromkeys([("xpu", XPU), ("triton", XPU)])
    monkeypatch.setattr(dispatch, "_reasons", reasons)
    assert next(b.name for b in dispatch.routes("quantize", XPU)) == "xpu"
    assert next(b.name for b in dispatch.routes("dequantize", XPU)) == "xpu"
    assert dispatch.routes("quantize", XPU)[-1].name == "torch"


def test_a_missing_native_library_leaves_the_next_backend(intel_gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(native, "library_path", lambda name: tmp_path / f"libmxfp8_{name}.so")
    native.load_error.cache_clear()
    try:
        assert "was not built" in xpu.BACKEND.unavailable_reason(XPU)
        assert "xpu" not in [b.name for b in dispatch.routes("quantize", XPU)]
    finally:
        native.load_error.cache_clear()


def test_a_library_without_the_xpu_key_is_refused(intel_gpu, monkeypatch):
    if torch._C._dispatch_has_kernel_for_dispatch_key("mxfp8::quantize_xpu", "XPU"):
        pytest.skip("another test of this process loaded the library")
    monkeypatch.setattr(native, "load_error", lambda name: None)
    assert "no kernel for mxfp8::quantize_xpu on the XPU key" in xpu.BACKEND.unavailable_reason(XPU)


def test_reasons_name_what_is_missing(monkeypatch):
    assert "xpu tensors, got a tensor on cpu" in xpu.BACKEND.unavailable_reason(torch.device("cpu"))
    monkeypatch.setattr(torch._C, "_has_xpu", False)
    assert "was not built for Intel GPUs" in xpu.BACKEND.unavailable_reason(XPU)
    monkeypatch.setattr(torch._C, "_has_xpu", True)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    assert "finds no Intel GPU" in xpu.BACKEND.unavailable_reason(XPU)


def test_a_named_backend_raises_with_its_reason():
    for name in ("xpu", "xpu_vllm"):
        with pytest.raises(BackendUnavailableError, match="it runs on xpu tensors"):
            OPERATIONS["quantize"].op(name)(torch.randn(4, 64))


def test_ipex_is_reported_and_not_used(monkeypatch):
    assert xpu.ipex_note() is None or "not used" in xpu.ipex_note()
    monkeypatch.setattr(platform, "package_version", lambda name: "2.8.0")
    assert "intel-extension-for-pytorch 2.8.0 is installed and not used" in xpu.ipex_note()
    assert xpu.ipex_note() in xpu.BACKEND.unavailable_reason(torch.device("cpu"))


def test_import_and_the_table_touch_nothing_of_xpu():
    """In a process where the Intel packages refuse to import and every question to a GPU is an error."""
    output = run_python("""
        import sys, torch
        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("intel_extension_for_pytorch", "vllm_xpu_kernels", "vllm"):
                    raise AssertionError(name + " was imported")
        sys.meta_path.insert(0, Refuse())
        def refuse(*args, **kwargs):
            raise AssertionError("XPU was initialised")
        torch.xpu.init = torch.xpu._lazy_init = refuse
        import mxfp8_ops
        from mxfp8_ops import native
        assert native.load_error.cache_info().misses <= 2  # those of the CPU and CUDA libraries
        mxfp8_ops.quantize(torch.randn(4, 64))
        str(mxfp8_ops.backends()), str(mxfp8_ops.backends("xpu"))
        assert not torch.xpu.is_initialized()
        print(any(m.startswith(("intel_extension", "vllm")) for m in sys.modules))
    """)
    assert output == "False"


SCHEMA = (
    "per_token_group_fp8_quant(Tensor input, Tensor! output_q, Tensor! output_s, int group_size, "
    "float eps, float fp8_min, float fp8_max, bool scale_ue8m0, bool dummy_is_scale_transposed, "
    "bool dummy_is_tma_aligned) -> ()"
)


@pytest.mark.parametrize(
    ("schema", "key", "expected"),
    [
        (SCHEMA, "CUDA", "the package vllm-xpu-kernels is not installed"),
        (SCHEMA, "XPU", "None"),
        (SCHEMA.replace("bool dummy_is_tma_aligned", "int tma"), "XPU", "other arguments"),
    ],
)
def test_only_the_xpu_op_with_the_known_arguments_is_taken(schema, key, expected):
    output = run_python(f"""
        import torch
        library = torch.library.Library("_C", "FRAGMENT")
        library.define({schema!r})
        library.impl("per_token_group_fp8_quant", lambda *args: None, {key!r})
        import mxfp8_ops
        from mxfp8_ops.backends.xpu_vllm import BACKEND
        assert "finds no Intel GPU" in BACKEND.unavailable_reason(torch.device("xpu", 0))
        torch.xpu.is_available = lambda: True
        print(BACKEND.unavailable_reason(torch.device("xpu", 0)))
    """)
    assert expected in output


def test_a_broken_vllm_package_is_a_reason(intel_gpu, monkeypatch):
    monkeypatch.setattr(platform, "package_version", lambda name: "0.1.16.2")

    def fail(name):
        raise OSError("libsycl.so.9: cannot open shared object file")

    monkeypatch.setattr(xpu_vllm.importlib, "import_module", fail)
    reason = xpu_vllm.BACKEND.unavailable_reason(XPU)
    assert "vllm-xpu-kernels 0.1.16.2 cannot be imported" in reason
    assert "libsycl.so.9" in reason


def test_vllm_is_never_chosen_by_itself():
    for device in ("cpu", "xpu", "meta"):
        assert "xpu_vllm" not in dispatch.preference(torch.device(device))


def emulated_vllm_op(
    input, output_q, output_s, group_size, eps, fp8_min, fp8_max, scale_ue8m0, transposed, aligned
):
    """What the op of vllm-xpu-kernels computes, in fp32, NaNs included."""
    blocks = input.float().view(-1, group_size)
    amax = torch.nan_to_num(blocks.abs(), nan=0.0, posinf=float("inf")).amax(-1)
    scale = torch.maximum(amax / fp8_max, torch.tensor(1 / (fp8_max * 512))).clamp_min(1e-10)
    scale = torch.exp2(torch.ceil(torch.log2(scale)))
    values = blocks * (1 / scale).unsqueeze(-1)
    values = torch.where(values.isnan(), fp8_max, values).clamp(fp8_min, fp8_max)
    output_q.copy_(values.to(output_q.dtype).view(output_q.shape))
    output_s.copy_(scale.view(output_s.shape))


@pytest.fixture
def vllm_quantize(monkeypatch):
    class Namespace:
        per_token_group_fp8_quant = staticmethod(emulated_vllm_op)

    monkeypatch.setattr(torch.ops, "_C", Namespace, raising=False)
    return xpu_vllm.BACKEND.launchers["quantize"]


@pytest.mark.parametrize("element", formats.ELEMENT_FORMATS)
@pytest.mark.parametrize("dtype", formats.INPUT_DTYPES)
def test_vllm_adapter_equals_rceil_on_ordinary_blocks(vllm_quantize, dtype, element):
    x = torch.randn(512, 128, generator=torch.Generator().manual_seed(0)).to(dtype)
    data, scale = vllm_quantize(x, dtype=element)
    expected_data, expected_scale = reference.quantize(x, dtype=element)
    assert torch.equal(scale.view(torch.uint8), expected_scale.view(torch.uint8))
    assert torch.equal(data.view(torch.uint8), expected_data.view(torch.uint8))


@pytest.mark.parametrize(
    ("element", "lowest"), [(torch.float8_e4m3fn, 110), (torch.float8_e5m2, 103)]
)
def test_vllm_deviations_are_the_documented_ones(vllm_quantize, element, lowest):
    x = torch.zeros(4, 32)
    x[1] = torch.linspace(1e-5, 1e-4, 32)
    x[2] = torch.linspace(-3, 3, 32)
    x[2, 5] = float("nan")
    x[3] = 1.0
    x[3, 5] = float("inf")
    data, scale = vllm_quantize(x, dtype=element)
    codes, byte = data.view(torch.uint8), scale.view(torch.uint8).flatten().tolist()
    exact = reference.quantize(x, dtype=element)[1].view(torch.uint8).flatten().tolist()
    assert byte[:2] == [lowest, lowest]
    assert exact[0] == 0
    assert exact[1] < lowest
    clean = torch.nan_to_num(x[2:3], nan=0.0)
    assert byte[2] == int(reference.quantize(clean, dtype=element)[1].view(torch.uint8))
    assert exact[2] == 255
    assert codes[2, 5] == (0x7E if element == torch.float8_e4m3fn else 0x7B)
    assert (byte[3], exact[3]) == (255, 255)
    assert not bool((codes[3] == formats.NAN_CODE).all())
    for word in ("110 (e4m3)", "103 (e5m2)", "0.0017", "NaN", "infinity"):
        assert word in xpu_vllm.BACKEND.deviation


@pytest.mark.parametrize(
    ("x", "options", "reason"),
    [
        (torch.zeros(4, 32), {"scaling_mode": "floor"}, "its scaling_mode is 'rceil', got 'floor'"),
        (torch.zeros(4, 32), {"scale_layout": "swizzled_8x4"}, "its scale_layout is 'linear'"),
        (torch.zeros(2, 4, 32), {}, "two-dimensional"),
        (torch.zeros(32, 64).t(), {}, "contiguous"),
        (torch.zeros(4, 32), {"alignment": 128}, "does not pad, got K = 32 and alignment = 128"),
    ],
)
def test_vllm_refuses_what_it_cannot_do(x, options, reason):
    assert reason in xpu_vllm.BACKEND.unsupported_reason("quantize", x, **options)
    assert xpu_vllm.BACKEND.unsupported_reason("quantize", torch.zeros(4, 32)) is None


@pytest.mark.parametrize("where", ["prefix", "data", "user", "oneapi"])
def test_sycl_headers_are_found_where_pip_or_oneapi_put_them(monkeypatch, tmp_path, where):
    """Debian's Python and ``pip --user`` keep packages outside sys.prefix."""
    setup = load_setup()
    (tmp_path / where / "include/sycl").mkdir(parents=True)
    (tmp_path / where / "include/sycl/sycl.hpp").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setenv("CMPLR_ROOT", str(tmp_path / "oneapi"))
    paths = {None: tmp_path / "data", "posix_user": tmp_path / "user"}
    monkeypatch.setattr(setup.sysconfig, "get_path", lambda name, scheme=None: str(paths[scheme]))
    assert setup.find_sycl() == tmp_path / where
