"""More than 2^31 elements on CPU: 64-bit offsets in every operation and layout."""

from __future__ import annotations

import mmap
import os

import pytest
import torch
from cases import LAYOUTS

import mxfp8_ops
from mxfp8_ops import reference
from mxfp8_ops.testing import assert_same_bytes

COLUMNS = 4096
ROWS = 2**31 // COLUMNS + 128
# The first and the last; both sides of 2^31 bytes of bfloat16, and of 2^31 elements.
CHOSEN = torch.tensor([0, 2**30 // COLUMNS - 1, 2**30 // COLUMNS, ROWS - 129, ROWS - 128, ROWS - 1])

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 7 * 2**30,
        reason="needs 7 GiB of free memory",
    ),
]


def zeros(dtype: torch.dtype) -> torch.Tensor:
    """``[ROWS, COLUMNS]`` of memory that the system does not hold before it is written."""
    memory = mmap.mmap(-1, ROWS * COLUMNS * dtype.itemsize)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(ROWS, COLUMNS)


def sample() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(len(CHOSEN), COLUMNS, generator=generator).to(torch.bfloat16)


def count_nonzero(x: torch.Tensor) -> int:
    return sum(int(part.view(torch.uint8).count_nonzero()) for part in x.split(2**14))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_quantize(layout):
    x = zeros(torch.bfloat16)
    x[CHOSEN] = sample()
    data, scale = mxfp8_ops.quantize(x, scale_layout=layout)
    expected_data, expected_scale = reference.quantize(sample())
    assert_same_bytes(data.view(torch.uint8)[CHOSEN], expected_data.view(torch.uint8))
    assert count_nonzero(data) == count_nonzero(expected_data)
    linear = mxfp8_ops.unswizzle_scale(scale, ROWS, COLUMNS // 32, layout).view(torch.uint8)
    assert_same_bytes(linear[CHOSEN], expected_scale.view(torch.uint8))
    assert count_nonzero(scale) == count_nonzero(expected_scale)


def test_quantize_columnwise():
    x = zeros(torch.bfloat16)
    x[CHOSEN] = sample()
    data, scale = mxfp8_ops.quantize_columnwise(x)
    blocks = (CHOSEN // 32).unique()
    rows = (blocks.unsqueeze(1) * 32 + torch.arange(32)).flatten()
    expected_data, expected_scale = reference.quantize_columnwise(x[rows])
    assert_same_bytes(
        data.view(torch.uint8)[:, rows], expected_data.view(torch.uint8), "data of chosen rows"
    )
    assert_same_bytes(scale.view(torch.uint8)[:, blocks], expected_scale.view(torch.uint8))
    assert count_nonzero(data) == count_nonzero(expected_data)
    assert count_nonzero(scale) == count_nonzero(expected_scale)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dequantize(layout):
    pair = reference.quantize(sample())
    data = zeros(torch.float8_e4m3fn)
    data.view(torch.uint8)[CHOSEN] = pair[0].view(torch.uint8)
    scale = torch.zeros(ROWS, COLUMNS // 32, dtype=torch.uint8)
    scale[CHOSEN] = pair[1].view(torch.uint8)
    tiles = mxfp8_ops.swizzle_scale(scale.view(torch.float8_e8m0fnu), layout)
    result = mxfp8_ops.dequantize(data, tiles, scale_layout=layout)
    expected = reference.dequantize(*pair)
    assert_same_bytes(result[CHOSEN], expected)
    assert count_nonzero(result) == count_nonzero(expected)
