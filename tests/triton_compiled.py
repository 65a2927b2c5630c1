"""Compile the Triton kernels for one GPU without having it, and check the assembly.

A process for each target (Triton 3.6 fixes its AMD conversion table on the first target that it sees).
Usage: ``python triton_compiled.py TARGET [LIMIT]``; prints the number of kernels, exits 1 with problems.
"""

import itertools
import os
import re
import sys
import tempfile

if "TRITON_CACHE_DIR" not in os.environ:
    os.environ["TRITON_ALWAYS_COMPILE"] = "1"
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="mxfp8-triton-")

import triton  # noqa: TID253
from triton.backends.compiler import GPUTarget  # noqa: TID253
from triton.compiler import ASTSource  # noqa: TID253

from mxfp8_ops.backends import triton_kernels as kernels

# target: (backend, architecture, lanes, cast, instruction of its conversion to FP8)
TARGETS = {
    "gfx90a": ("hip", "gfx90a", 64, "software", None),
    "gfx942": ("hip", "gfx942", 64, "fnuz", r"v_cvt_pk_(fp8|bf8)_f32"),
    "gfx950": ("hip", "gfx950", 64, "native", r"v_cvt_scalef32_pk_(fp8|bf8)_f32"),
    "gfx1201": ("hip", "gfx1201", 32, "software", None),
    "sm_80": ("cuda", 80, 32, "software", None),
    "sm_90": ("cuda", 90, 32, "satfinite", r"cvt\.rn\.satfinite\.e[45]m[32]x2\.f32"),
    "sm_100": ("cuda", 100, 32, "satfinite", r"cvt\.rn\.satfinite\.e[45]m[32]x2\.f32"),
    "sm_120": ("cuda", 120, 32, "satfinite", r"cvt\.rn\.satfinite\.e[45]m[32]x2\.f32"),
}
WIDE = {
    "cuda": (r"ld\.global[\w.:]*\.v4\.b32", r"st\.global[\w.:]*\.v4\.b32"),
    "hip": (r"(global|buffer)_load_(dwordx4|b128)", r"(global|buffer)_store_(dwordx4|b128)"),
}
FORBIDDEN = {
    "cuda": (r"\.ftz", r"\bex2\.", r"\blg2\.", r"\bdiv\.(full|rn|approx)", r"\brcp\."),
    # v_rcp_f32 alone is how integers are divided.
    "hip": (r"scratch_store", r"v_exp_f32", r"v_log_f32", r"v_div_fixup_f32"),
}
FORBIDDEN_IR = (r"\bfdiv\b", r"llvm\.(exp|log|pow)")
# An fp16 product and its rounding in one instruction, with +0 added: -0 becomes +0.
MIXED = r"v_(fma|mad)_mix(lo|hi)_f16"
SIGN_RESTORED = r"= or (<\d+ x )?i16"
# What Triton tells the compiler of a pointer: that it is aligned and, on AMD, that its storage has less
# than 2 GiB, which makes buffer instructions of accesses with 64-bit offsets too.
ALIGNED = ["tt.divisibility", 16]
PROMISES = {"cuda": [[ALIGNED]], "hip": [[ALIGNED], [ALIGNED, ["tt.pointer_range", 32]]]}
POINTERS = {"data_ptr": "u8", "scale_ptr": "u8", "data_t_ptr": "u8", "scale_t_ptr": "u8"}


def variants(cast):
    """(name, kernel, types of pointers, constants, warps, whether loads and stores are 16 bytes)."""
    launch = {"EVICT": False, "PDL": False}
    tile = {"LAYOUT": 1, "ROWS": 8, "COLUMNS": 16, "VECTOR": 16}
    flat = {"BLOCKS": 128, "VECTOR": 16}
    for element, type_ in ((False, "i16"), (True, "i16"), (False, "fp16"), (False, "fp32")):
        pointers = {**POINTERS, "x_ptr": type_}
        common = {"E5M2": element, "CAST": kernels.CASTS[cast], **launch}
        units = {"STRIDE_UNIT": 4 if type_ == "fp32" else 8, "COLUMN_UNIT": 32}
        for mode in (0, 1):
            constants = {"MODE": mode, **common, **flat}
            yield "flat", kernels.quantize_flat_kernel, pointers, constants, 2, True
        constants = {"MODE": 1, **common, **tile, **units}
        yield "tiles", kernels.quantize_tiles_kernel, pointers, constants, 2, True
        if type_ == "i16":
            constants = {"MODE": 1, **common, **units, "BOTH": True, "LAYOUT": 0, "LAYOUT_T": 1}
            constants |= {"AXIS": kernels.OCTET_AXIS, "OCTETS": 16, "COLUMNS": 64}
            constants |= {"GROUP": 4, "VECTOR": 8}
            yield "both", kernels.quantize_columns_kernel, pointers, constants, 4, False
        decode = {
            **common,
            "CAST": kernels.CASTS["native" if cast in ("native", "satfinite") else "software"],
        }
        pointers = {**POINTERS, "out_ptr": type_}
        yield "dequantize", kernels.dequantize_flat_kernel, pointers, {**decode, **flat}, 2, True
        if type_ == "i16":
            constants = {**decode, **tile}
            yield "dequantize tiles", kernels.dequantize_tiles_kernel, pointers, constants, 2, True


def compile_for(target, kernel, pointers, constants, warps, promises):
    """The assembly and LLVM IR of one variant, with ``promises`` about every pointer."""
    signature, attributes = {}, {}
    for i, parameter in enumerate(kernel.params):
        if parameter.name in constants:
            signature[parameter.name] = "constexpr"
        elif parameter.name in pointers:
            signature[parameter.name] = "*" + pointers[parameter.name]
            attributes[(i,)] = promises
        else:
            signature[parameter.name] = parameter.annotation_type
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=target, options={"num_warps": warps})
    return compiled.asm.get("amdgcn") or compiled.asm["ptx"], compiled.asm["llir"]


def main(name, limit=None):
    vendor, architecture, lanes, cast, conversion = TARGETS[name]
    target = GPUTarget(vendor, architecture, lanes)
    problems, count = [], 0
    for (what, kernel, pointers, constants, warps, wide), promises in itertools.product(
        itertools.islice(variants(cast), limit), PROMISES[vendor]
    ):
        text, ir = compile_for(target, kernel, pointers, constants, warps, promises)
        count += 1
        label = f"{what} {pointers.get('x_ptr') or pointers.get('out_ptr')} {constants} {promises}"
        required = [*WIDE[vendor]] if wide else [WIDE[vendor][0]]
        if conversion and not what.startswith("dequantize"):
            required.append(conversion)
        problems += [f"{label}: no {p}" for p in required if not re.search(p, text)]
        problems += [f"{label}: has {p}" for p in FORBIDDEN[vendor] if re.search(p, text)]
        problems += [f"{label}: its IR has {p}" for p in FORBIDDEN_IR if re.search(p, ir)]
        if re.search(MIXED, text) and not re.search(SIGN_RESTORED, ir):
            problems.append(f"{label}: -0 becomes +0")
        spills = re.search(r"\.vgpr_spill_count:\s+([1-9]\d*)", text)
        if spills:
            problems.append(f"{label}: {spills.group(1)} spilled registers")
    print("\n".join(problems), file=sys.stderr)
    print(count)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
