# SPDX-License-Identifier: Apache-2.0
"""Fixtures that several files of these tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute import dispatch_rig, driver_rig
from tests.compute.broker_rig import Broker, build_fake_supervisor, make_broker
from tests.compute.executor_rig import make_product
from tests.compute.gates import GATES, has_gate


@pytest.fixture(scope="session")
def dispatch_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The OpenCL backend. The test plays its client."""
    return dispatch_rig.make_driver(tmp_path_factory.mktemp("dispatch"))


@pytest.fixture(scope="session")
def pocl_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tests share one cache, because compiling takes the most time."""
    return tmp_path_factory.mktemp("pocl")


@pytest.fixture(scope="session")
def driver_child(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A child that calls NVIDIA's driver on the test's instructions. The product is built as well."""
    make_product()
    return driver_rig.make_driver_child(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def gpu() -> Iterator[driver_rig.Gpu]:
    """A fake GPU with its driver."""
    with driver_rig.run_gpu() as gpu:
        yield gpu


@pytest.fixture(params=GATES)
def gate(request: pytest.FixtureRequest) -> str:
    """Each kind of gate that this machine has."""
    kind = str(request.param)
    if not has_gate(kind):
        pytest.skip(f"this machine lets nobody use {kind}")
    return kind


@pytest.fixture(scope="module", params=["plain", pytest.param("sanitized", marks=pytest.mark.long)])
def broker_programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The broker's program and the supervisor's. The test plays the supervisor and its children."""
    broker = make_broker(sanitized=request.param == "sanitized")
    return broker, build_fake_supervisor(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def broker(tmp_path: Path, broker_programs: tuple[Path, Path]) -> Iterator[Broker]:
    """A real broker. The test plays supervisors and children."""
    with Broker(tmp_path, *broker_programs) as running:
        yield running
    assert "Sanitizer" not in running.log()
    assert "runtime error" not in running.log()
