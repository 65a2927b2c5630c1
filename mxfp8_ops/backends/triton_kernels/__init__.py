"""Device code of the triton backend. Import it lazily: it needs the package ``triton``.

Everything that decides a scale is integer arithmetic on fp32 bits. Ordered as integers, NaN bits >
infinity bits > finite bits, so an integer maximum finds non-finite blocks whatever the target does
with NaN, and no result depends on log2, exp2 or the flushing of subnormals.

Pointers are int16 (for bf16), fp16, fp32 and uint8: Triton has no float8_e8m0fnu, and the
interpreter's own conversion from bf16 damages subnormals. No module here has
``from __future__ import annotations``: Triton reads the annotations of kernel arguments.
"""

from .columns import quantize_columns_kernel
from .dequantize import dequantize_flat_kernel, dequantize_tiles_kernel
from .numerics import CASTS, LAYOUTS, MODES, OCTET_AXIS
from .rows import quantize_flat_kernel, quantize_tiles_kernel

__all__ = [
    "CASTS",
    "LAYOUTS",
    "MODES",
    "OCTET_AXIS",
    "dequantize_flat_kernel",
    "dequantize_tiles_kernel",
    "quantize_columns_kernel",
    "quantize_flat_kernel",
    "quantize_tiles_kernel",
]
