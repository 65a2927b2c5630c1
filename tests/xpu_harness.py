"""The XPU library built for Intel's OpenCL CPU device, and its C functions on poisoned buffers."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import torch
from cases import load_setup

from mxfp8_ops import formats

ROOT = Path(__file__).parent.parent
SYCL = os.environ.get("MXFP8_TEST_SYCL")
DTYPES = formats.INPUT_DTYPES
ELEMENTS = tuple(formats.ELEMENT_FORMATS)
LAYOUTS = tuple(formats.SCALE_LAYOUTS)
GUARD = 64


def run(command: list[str], **environment: str) -> None:
    subprocess.run(command, check=True, env={**os.environ, **environment})


def build_libraries(work: Path) -> dict[str, Path]:
    """``XPU``: the library as users build it. ``CPU``: the same on the CPU key."""
    module = load_setup()
    stand_in = work / "libtorch_xpu.so"
    flags = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{SYCL}/include"]
    links = [f"-L{SYCL}/lib", "-lsycl", "-Wl,-soname,libtorch_xpu.so"]
    source = str(ROOT / "tests/xpu/stand_in.cpp")
    run([module.find_cxx(), *flags, source, "-o", str(stand_in), *links])
    # Later libraries find it by its name, as they would find torch's.
    ctypes.CDLL(str(stand_in), mode=ctypes.RTLD_GLOBAL)
    built = {"stand_in": stand_in}
    for key, defines in (("XPU", []), ("CPU", ["-DMXFP8_XPU_KEY=CPU", "-DMXFP8_XPU_WAIT"])):
        built[key] = work / key / "libmxfp8_xpu.so"
        built[key].parent.mkdir()
        commands, link = module.xpu_commands(built[key], built[key].parent)
        for command in commands:
            run([command[0], *defines, *command[1:]])
        run(link, LIBRARY_PATH=str(work))
    return built


class Core:
    """The launcher's C functions on a queue of the CPU device, outputs poisoned and guarded."""

    def __init__(self, library: Path, stand_in: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.stand_in = ctypes.CDLL(str(stand_in))
        for name in ("quantize", "dequantize", "prepare", "prepare_device"):
            getattr(self.library, f"mxfp8_xpu_{name}").restype = ctypes.c_char_p
        for name in ("queue", "new_queue"):
            getattr(self.stand_in, f"stand_in_{name}").restype = ctypes.c_void_p
        assert self.stand_in.stand_in_reads_host_memory() == 1
        self.queue = ctypes.c_void_p(self.stand_in.stand_in_queue())

    def new_queue(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.stand_in.stand_in_new_queue())

    def call(self, name: str, *arguments, queue=None) -> None:
        queue = queue or self.queue
        converted = [
            ctypes.c_void_p(a.data_ptr())
            if isinstance(a, torch.Tensor)
            else a
            if isinstance(a, ctypes.c_int)
            else ctypes.c_int64(a)
            for a in arguments
        ]
        error = getattr(self.library, f"mxfp8_xpu_{name}")(queue, *converted)
        self.stand_in.stand_in_wait(queue)
        if error is not None:
            raise RuntimeError(error.decode())

    def quantize(self, x, dtype, mode, layout="linear", alignment=None, poison=0xFF, queue=None):
        matrices = x.reshape(-1, *x.shape[-2:]) if x.dim() != 3 else x
        data_shape, scale_shape = formats.quantized_shapes(x.shape, layout, alignment)
        data, check_data = guarded(data_shape, dtype, poison)
        scale, check_scale = guarded(scale_shape, formats.SCALE_DTYPE, poison)
        places = (
            DTYPES.index(x.dtype),
            ELEMENTS.index(dtype),
            formats.SCALING_MODES.index(mode),
            LAYOUTS.index(layout),
        )
        batch, rows, columns = matrices.shape
        batch_stride, row_stride, _ = matrices.stride()
        self.call(
            "quantize",
            *map(ctypes.c_int, places),
            matrices,
            data,
            scale,
            *(batch, rows, columns, data_shape[-1], batch_stride, row_stride),
            queue=queue,
        )
        check_data()
        check_scale()
        return data, scale

    def dequantize(self, data, scale, dtype, layout="linear", poison=0xFF):
        output, check = guarded(data.shape, dtype, poison)
        places = (ELEMENTS.index(data.dtype), DTYPES.index(dtype), LAYOUTS.index(layout))
        batch = data.numel() // (data.shape[-1] * data.shape[-2])
        sizes = (batch, data.shape[-2], data.shape[-1])
        self.call("dequantize", *map(ctypes.c_int, places), data, scale, output, *sizes)
        check()
        return output


def guarded(shape, dtype, poison):
    """A poisoned tensor between guard bytes, and a check that those were left alone."""
    size = torch.Size(shape).numel() * dtype.itemsize
    storage = torch.full((size + 2 * GUARD,), poison, dtype=torch.uint8)
    storage[:GUARD] = storage[size + GUARD :] = 0x5A

    def check() -> None:
        edges = torch.cat([storage[:GUARD], storage[size + GUARD :]])
        assert bool((edges == 0x5A).all()), "bytes outside the output were written"

    return storage[GUARD : size + GUARD].view(dtype).reshape(shape), check
