"""Checkpoints in safetensors to MXFP8 and back: files that serving engines load.

``convert`` reads a safetensors file or a Hugging Face model folder tensor by tensor and writes weights as
``float8_e4m3fn`` ``[N, K]`` with scales as uint8 ``[N, K / 32]``; ``check`` reads the result with the
package compressed-tensors, or with this one, and compares it with the original.
"""

from .checker import CheckedTensor, check
from .converter import convert
from .errors import CheckpointError
from .plan import Options, Plan, make_plan
from .targets import TARGETS

__all__ = [
    "TARGETS",
    "CheckedTensor",
    "CheckpointError",
    "Options",
    "Plan",
    "check",
    "convert",
    "make_plan",
]
