"""The real flashinfer-python without a GPU: our call fits its signature, its kernel compiles for sm_100a.

``scripts/test_flashinfer.sh`` installs the package and sets ``MXFP8_OPS_REQUIRE_FLASHINFER=1``, under
which a missing or unusable package is a failure instead of a skip.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import subprocess
import sys
import textwrap

import pytest
import torch

from mxfp8_ops import platform
from mxfp8_ops.backends import cute_dsl
from mxfp8_ops.compat import flashinfer as compat
from mxfp8_ops.testing import assert_same_bytes

_REQUIRED = os.environ.get("MXFP8_OPS_REQUIRE_FLASHINFER", "") == "1"
pytestmark = pytest.mark.skipif(
    not _REQUIRED and importlib.util.find_spec("flashinfer") is None,
    reason="flashinfer-python is not installed; scripts/test_flashinfer.sh installs it and runs this",
)


@pytest.fixture(scope="module")
def found():
    cute_dsl.quantizer.cache_clear()
    result = cute_dsl.quantizer()
    if isinstance(result, str) and not _REQUIRED:
        pytest.skip(f"the installed package is refused: {result}")
    return result


def test_the_probe_accepts_it(found):
    assert not isinstance(found, str), found
    assert found.version == platform.package_version("flashinfer-python")
    assert not torch.cuda.is_initialized()


def test_our_call_binds_to_the_real_signature(found, monkeypatch):
    """The adapter runs as it is; only the function behind the signature is another."""
    signature = inspect.signature(found.function)
    recorded = []

    def stand_in(*args, **kwargs):
        recorded.append(signature.bind(*args, **kwargs).arguments)
        x = kwargs["input"]
        scale = torch.empty(x.numel() // 32, dtype=torch.uint8)
        return torch.empty(x.shape, dtype=torch.float8_e4m3fn), scale

    quantizer = cute_dsl._Quantizer(stand_in, found.layouts, found.version, found.takes_float32)
    monkeypatch.setattr(cute_dsl, "quantizer", lambda: quantizer)
    x = torch.zeros(128, 128, dtype=torch.bfloat16)
    for scale_layout in ("linear", "swizzled_32_4_4", "swizzled_8x4"):
        cute_dsl.launch_quantize(x, scale_layout=scale_layout)
    names = [call["sf_swizzle_layout"].name for call in recorded]
    assert names == ["layout_linear", "layout_128x4", "layout_8x4"]
    assert {call["backend"] for call in recorded} == {"cute-dsl"}
    assert {call["alignment"] for call in recorded} == {32}


def test_without_a_gpu_the_real_function_refuses_in_a_way_we_understand(found):
    """It ends in its own check of the device, so every argument before that was accepted."""
    with pytest.raises(cute_dsl.BackendUnavailableError, match="CUDA"):
        cute_dsl.launch_quantize(torch.zeros(4, 64, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    "name", ["mxfp8_quantize", "mxfp8_dequantize_host", "block_scale_interleave"]
)
def test_the_drop_ins_have_the_real_signatures(found, name):
    """0.7.4 renames a default and adds a keyword, which a caller of earlier versions does not use."""
    import flashinfer

    theirs = inspect.signature(getattr(flashinfer, name)).parameters.values()
    ours = inspect.signature(getattr(compat, name)).parameters.values()
    shared = [p for p in theirs if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert [(p.name, p.kind) for p in ours] == [(p.name, p.kind) for p in shared]
    defaults = [p.default if p.default != "auto" else "cuda" for p in shared]
    assert [p.default for p in ours] == defaults


def test_the_drop_ins_take_the_real_layouts(found):
    from flashinfer import SfLayout

    assert {m.name: m.value for m in SfLayout} == {m.name: m.value for m in compat.SfLayout}
    for layout in SfLayout:
        x = torch.randn(5, 96)
        given = compat.mxfp8_quantize(x, sf_swizzle_layout=layout)
        ours = compat.mxfp8_quantize(x, sf_swizzle_layout=compat.SfLayout[layout.name])
        assert_same_bytes(given, ours)


# Runs in a process of its own: the compiler reads its settings from the environment on import.
_COMPILE = textwrap.dedent(
    """
    import sys
    import flashinfer.quantization.kernels.mxfp8_quantize as kernels
    from cutlass.base_dsl.runtime import cuda

    # The kernel's launch bounds make the compiler ask a driver for the shared memory of an SM.
    cuda.get_device_attribute = lambda attribute, device_id=0: 233472
    is_bfloat16, layout = sys.argv[1] == "bfloat16", sys.argv[2]
    if layout == "linear":
        compiled, _ = kernels._get_compiled_kernel_mxfp8_linear(is_bfloat16, 4096, True, True)
    else:
        number = getattr(kernels, "SF_LAYOUT_" + layout)
        compiled, _ = kernels._get_compiled_kernel_mxfp8_swizzled(
            is_bfloat16, 4096, True, True, number
        )
    ptx = compiled.artifacts.PTX
    print(ptx if isinstance(ptx, str) else ptx.decode())
    print("CUBIN", len(compiled.artifacts.CUBIN))
    """
)


@pytest.mark.parametrize("layout", ["linear", "128x4", "8x4"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_kernel_compiles_for_blackwell(found, dtype, layout, tmp_path):
    """And keeps what our exactness rests on: no flushed subnormals, saturating round-to-nearest-even."""
    settings = {
        "CUTE_DSL_ARCH": "sm_100a",
        "CUTE_DSL_KEEP": "ptx,cubin",
        "CUTE_DSL_DUMP_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE, dtype, layout],
        capture_output=True,
        text=True,
        env={**os.environ, **settings},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ptx, _, size = done.stdout.rpartition("CUBIN")
    assert int(size) > 1000
    assert ".target sm_100a" in ptx
    assert ".ftz" not in ptx
    casts = re.findall(r"cvt\.\S*e4m3x2\S*", ptx)
    assert casts
    assert set(casts) == {"cvt.rn.satfinite.e4m3x2.f32"}
    assert "0f3B124925" in ptx, "the factor fp32(1 / 448)"
