# SPDX-License-Identifier: Apache-2.0
"""What several files of these tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute import dispatch_rig, driver_rig
from tests.compute.broker_rig import Broker, build_fake_supervisor, make_broker
from tests.compute.executor_rig import make_product
from tests.compute.gates import GATES, has_gate


@pytest.fixture(scope="session")
def dispatch_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The OpenCL backend with a client that a test plays."""
    return dispatch_rig.make_driver(tmp_path_factory.mktemp("dispatch"))


@pytest.fixture(scope="session")
def pocl_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all, as compiling is what takes longest."""
    return tmp_path_factory.mktemp("pocl")


@pytest.fixture(scope="session")
def driver_child(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A child that calls NVIDIA's driver as a test tells it to; the product is built as well."""
    make_product()
    return driver_rig.make_driver_child(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def gpu() -> Iterator[driver_rig.Gpu]:
    """A fake GPU with its driver."""
    with driver_rig.run_gpu() as gpu:
        yield gpu


@pytest.fixture(params=GATES)
def gate(request: pytest.FixtureRequest) -> str:
    """Each kind that this machine has."""
    kind = str(request.param)
    if not has_gate(kind):
        pytest.skip(f"this machine lets nobody use {kind}")
    return kind


@pytest.fixture(scope="module", params=["plain", pytest.param("sanitized", marks=pytest.mark.long)])
def broker_programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The broker, and a supervisor and its children that the test plays."""
    broker = make_broker(sanitized=request.param == "sanitized")
    return broker, build_fake_supervisor(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def broker(tmp_path: Path, broker_programs: tuple[Path, Path]) -> Iterator[Broker]:
    """The real one; supervisors and children are the test."""
    with Broker(tmp_path, *broker_programs) as running:
        yield running
    assert "Sanitizer" not in running.log()
    assert "runtime error" not in running.log()
