"""Compile the Triton kernels to SPIR-V for Intel GPUs, with no GPU; run by scripts/test_xpu_triton.sh.

Needs a Triton with the Intel backend. Every kernel is compiled for every target, input type,
element type and layout, with the software cast: Triton's own fp8 cast of this version saturates e4m3 at
256 on Intel GPUs. Exit status 1 if any of them fails.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
import time
from pathlib import Path

import triton  # noqa: TID253
from triton.backends.compiler import GPUTarget  # noqa: TID253
from triton.compiler import ASTSource  # noqa: TID253

KERNELS = Path(__file__).parent.parent / "mxfp8_ops/backends/triton_kernels/__init__.py"
# Values of SYCL's architecture enumeration.
ARCHITECTURES = {"pvc": 0x30F000700, "bmg_g21": 0x500400400, "lnl_m": 0x501000400}
# Rows and blocks of 32 of a tile, by layout number.
TILES = {0: (8, 4), 1: (128, 4), 2: (8, 4)}
CAST = {"CAST": 0, "VECTOR": 4, "EVICT": False, "PDL": False}


def target(name: str) -> GPUTarget:
    properties = {
        "name": name,
        "platform_name": "Level-Zero",
        "vendor": "Intel",
        "version": "1",
        "driver_version": "1.6.33578",
        "architecture": ARCHITECTURES[name],
        "gpu_eu_count": 64,
        "gpu_subslice_count": 8,
        "max_work_group_size": 1024,
        "max_num_sub_groups": 64,
        "sub_group_sizes": [16, 32],
        "has_fp64": True,
        "has_bfloat16_conversions": True,
    }
    return GPUTarget("xpu", properties, 32)


def cases():
    """(kernel, type of x or of the output, constants)."""
    for kind, e5m2 in itertools.product(("*i16", "*fp16", "*fp32"), (False, True)):
        for mode in range(4):
            constants = {"MODE": mode, "E5M2": e5m2, "BLOCKS": 32}
            yield "quantize_flat_kernel", kind, constants
        for layout, (rows, columns) in TILES.items():
            tile = {"E5M2": e5m2, "LAYOUT": layout, "ROWS": rows, "COLUMNS": columns}
            for unit in (1, 32):
                units = {"STRIDE_UNIT": unit, "COLUMN_UNIT": unit}
                yield "quantize_tiles_kernel", kind, {**tile, **units, "MODE": 1}
            yield "dequantize_tiles_kernel", kind, tile
            for both, axis in itertools.product((False, True), (0, 1)):
                layouts = {"LAYOUT": layout, "LAYOUT_T": layout, "BOTH": both, "AXIS": axis}
                sizes = {"OCTETS": 4, "COLUMNS": 64, "GROUP": 1}
                units = {"STRIDE_UNIT": 1, "COLUMN_UNIT": 1}
                constants = {"MODE": 1, "E5M2": e5m2, **layouts, **sizes, **units}
                yield "quantize_columns_kernel", kind, constants
        yield "dequantize_flat_kernel", kind, {"E5M2": e5m2, "BLOCKS": 32}


def compile_kernel(kernel, kind: str, constants: dict, gpu: GPUTarget) -> bytes:
    signature, values = {}, {}
    for index, parameter in enumerate(kernel.params):
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            values[(index,)] = constants[parameter.name]
        elif parameter.name in ("x_ptr", "out_ptr"):
            signature[parameter.name] = kind
        elif parameter.name.endswith("_ptr"):
            signature[parameter.name] = "*u8"
        else:
            # "i64", or tl.int64 as "triton.language.int64"
            signature[parameter.name] = parameter.annotation.split(".")[-1].replace("int", "i")
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs={})
    return triton.compile(source, target=gpu, options={"num_warps": 4}).asm["spv"]


def main() -> int:
    spec = importlib.util.spec_from_file_location("triton_kernels", KERNELS)
    module = importlib.util.module_from_spec(spec)
    sys.modules["triton_kernels"] = module
    spec.loader.exec_module(module)
    cuda = triton.language.extra.cuda
    if not hasattr(cuda, "gdc_wait"):
        # Newer than this Triton. The kernels name it behind a constant that is false here, but the
        # search for what a kernel depends on looks it up all the same.
        cuda.gdc_wait = cuda.globaltimer
    names = sys.argv[1:] or list(ARCHITECTURES)
    compiled, failures, start = 0, [], time.perf_counter()
    for name in names:
        for kernel, kind, constants in cases():
            case = f"{kernel} for {name}, {kind}, {constants}"
            try:
                binary = compile_kernel(
                    getattr(module, kernel), kind, {**CAST, **constants}, target(name)
                )
            except Exception as error:  # every kind of compiler failure is a result here
                failures.append(case)
                print(f"FAILED {case}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                continue
            if int.from_bytes(binary[:4], "little") != 0x07230203:
                failures.append(case)
                print(f"FAILED {case}: the result is not SPIR-V", flush=True)
            compiled += 1
        print(f"{name}: {compiled} compiled, {len(failures)} failed so far", flush=True)
    seconds = time.perf_counter() - start
    print(f"triton {triton.__version__}: {compiled} kernels compiled in {seconds:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
