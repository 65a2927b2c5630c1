"""MXFP8 quantization for PyTorch: one set of ops, the same bytes on every platform.

Importing this package registers ``torch.ops.mxfp8``; it touches no device and no optional package.
"""

from ._version import __version__
from .api import (
    backends,
    dequantize,
    quantize,
    quantize_both,
    quantize_columnwise,
    swizzle_scale,
    unswizzle_scale,
    warmup,
)
from .errors import BackendUnavailableError

__all__ = [
    "BackendUnavailableError",
    "__version__",
    "backends",
    "dequantize",
    "quantize",
    "quantize_both",
    "quantize_columnwise",
    "swizzle_scale",
    "unswizzle_scale",
    "warmup",
]
