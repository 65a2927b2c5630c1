"""The CPU kernels built for another processor and run by an emulator of it, as a program behind pipes."""

from __future__ import annotations

import itertools
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence

import pytest
import torch
from cases import DTYPES, ELEMENTS, LAYOUTS, MODES, ROOT
from cpu_raw import extent

from mxfp8_ops import formats, reference, testing

QUANTIZE, BOTH, DEQUANTIZE, SWIZZLE, UNSWIZZLE = range(5)
# The compiler, how its programs are run.
PROCESSORS = {"aarch64": ("aarch64-linux-gnu-g++", "qemu-aarch64-static")}


class Driver:
    """A process of ``native/cpu_driver.cpp``."""

    def __init__(self, command: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)

    def __call__(
        self,
        operation: int,
        arguments: Sequence[int],
        inputs: Sequence[bytes],
        outputs: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        """The outputs, with the shapes and dtypes of ``outputs``."""
        sizes = [len(i) for i in inputs] + [0] * (4 - len(inputs))
        sizes += [o.nbytes for o in outputs] + [0] * (4 - len(outputs))
        numbers = [operation, len(arguments), *arguments, *sizes]
        stdin, stdout = self._process.stdin, self._process.stdout
        stdin.write(struct.pack(f"{len(numbers)}q", *numbers) + b"".join(inputs))
        stdin.flush()
        results = []
        for like in outputs:
            answer = stdout.read(like.nbytes)
            assert len(answer) == like.nbytes, f"ended with {self._process.wait()}"
            flat = torch.frombuffer(bytearray(answer), dtype=torch.uint8)
            results.append(flat.view(like.dtype).view(like.shape))
        return results

    def end(self) -> str:
        """The instruction set that it used."""
        _, errors = self._process.communicate()
        assert self._process.returncode == 0, errors
        return errors.decode().strip()


@pytest.fixture(scope="module", params=PROCESSORS)
def program(request, tmp_path_factory) -> list[str]:
    """Command that runs the driver."""
    compiler, emulator = PROCESSORS[request.param]
    for tool in (compiler, emulator):
        if shutil.which(tool) is None:
            if os.environ.get("MXFP8_TEST_PROCESSORS") == "1":
                pytest.fail(f"{tool} was not found")
            pytest.skip(f"{tool} was not found; make test-processors installs it")
    binary = tmp_path_factory.mktemp("driver") / "driver"
    names = ("c_api", "quantize", "dequantize", "storage", "kernels")
    sources = [ROOT / "tests/native/cpu_driver.cpp", *(ROOT / f"csrc/cpu/{n}.cpp" for n in names)]
    flags = ["-std=c++17", "-O3", "-static", "-ffp-contract=off", f"-I{ROOT / 'csrc'}"]
    command = [compiler, *flags, *map(str, sources), "-o", str(binary)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-4000:]
    return [emulator, str(binary)]


@pytest.fixture
def driver(program) -> Iterator[Driver]:
    driver = Driver(program)
    yield driver
    assert driver.end() == "portable"


def raw(x: torch.Tensor) -> bytes:
    """The bytes of a tensor from its first to its last element, whatever lies between."""
    flat = torch.as_strided(x, (extent(x),), (1,))
    return bytes(flat.view(torch.uint8).numpy())


def format_codes(x: torch.Tensor, element: torch.dtype, mode: str) -> list[int]:
    elements = tuple(formats.ELEMENT_FORMATS)
    return [
        formats.INPUT_DTYPES.index(x.dtype),
        elements.index(element),
        formats.SCALING_MODES.index(mode),
    ]


def matrices(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    x = testing.adversarial_blocks(dtype, random=300)
    x = x[: x.shape[0] // 160 * 160].reshape(-1, 160)
    wide = torch.randn(130, 99, generator=torch.Generator().manual_seed(0)).to(dtype)
    return {
        "adversarial": x,
        "ragged rows apart": wide[:, :70],
        "transposed": wide[:, :96].t(),
        "steps": wide[:, 1::2],
        "one row": wide[:1, :33],
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quantize(driver, dtype):
    for (name, x), element, layout in itertools.product(matrices(dtype).items(), ELEMENTS, LAYOUTS):
        for mode in MODES if name == "adversarial" else MODES[:1]:
            options = {"dtype": element, "scaling_mode": mode, "alignment": 32}
            expected = reference.quantize_both(
                x, **options, scale_layout=layout, scale_layout_t="linear"
            )
            shape = [*x.shape, *x.stride(), *format_codes(x, element, mode)]
            code = list(formats.SCALE_LAYOUTS).index(layout)
            padded = [formats.round_up(n, 32) for n in x.shape]
            rows = driver(QUANTIZE, [*shape, code, padded[1]], [raw(x)], expected[:2])
            testing.assert_same_bytes(rows, expected[:2], f"{name} {layout} {options}")
            both = driver(BOTH, [*shape, code, 0, *padded], [raw(x)], expected)
            testing.assert_same_bytes(both, expected, f"both: {name} {layout} {options}")


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_dequantize_every_code_under_every_scale(driver, element):
    codes = torch.arange(256, dtype=torch.uint8)
    data = codes.repeat(256, 1).view(element)
    scale = codes.unsqueeze(1).repeat(1, 8).view(torch.float8_e8m0fnu)
    for dtype, (code, layout) in itertools.product(DTYPES, enumerate(formats.SCALE_LAYOUTS)):
        tiles = reference.swizzle_scale(scale, layout)
        expected = reference.dequantize(data, scale, dtype=dtype)
        arguments = [256, 256, [*formats.ELEMENT_FORMATS].index(element), code]
        arguments.append(formats.INPUT_DTYPES.index(dtype))
        inputs = [raw(data.view(torch.uint8)), raw(tiles.view(torch.uint8).view(1, -1))]
        testing.assert_same_bytes(
            driver(DEQUANTIZE, arguments, inputs, [expected]), [expected], f"{dtype} {layout}"
        )


def test_scale_layouts(driver):
    linear = torch.arange(131 * 7).to(torch.uint8).view(131, 7).view(torch.float8_e8m0fnu)
    for code, layout in enumerate(formats.SCALE_LAYOUTS):
        stored = reference.swizzle_scale(linear, layout)
        arguments = [131, 7, 7, 1, code]
        inputs = [raw(linear.view(torch.uint8))]
        testing.assert_same_bytes(
            driver(SWIZZLE, arguments, inputs, [stored]), [stored], f"swizzle {layout}"
        )
        back = driver(UNSWIZZLE, [131, 7, code], [raw(stored.view(torch.uint8))], [linear])
        testing.assert_same_bytes(back, [linear], f"unswizzle {layout}")
