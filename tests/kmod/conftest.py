# SPDX-License-Identifier: Apache-2.0
"""The kernel module alone, driven through VFIO; these tests run inside a lab host, on every supported kernel.

A kernel splat during any of them fails the whole run: the lab looks for it at the end.
"""

import time

import pytest

from tests.rig.edu import edu
from tests.rig.fixtures import control, gpu, module, second_gpu

__all__ = ["control", "edu", "gpu", "module", "pytest_addoption", "second_gpu"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-seconds",
        type=float,
        default=600,
        help="how long the long fuzz of a device runs (600)",
    )


@pytest.fixture(scope="module")
def quiet_log() -> None:
    """Reset the kernel's limit of 10 lines in 5 s."""
    time.sleep(6)


@pytest.fixture
def fuzz_s(request: pytest.FixtureRequest) -> float:
    return float(request.config.getoption("--fuzz-seconds"))
