"""Settings shared by the tests."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default",
    max_examples=int(os.environ.get("MXFP8_OPS_EXAMPLES", "60")),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    """Compiled code of one test does not count as a recompile in the next."""
    yield
    torch._dynamo.reset()
