# SPDX-License-Identifier: Apache-2.0
"""The product as our role deployed it, in a lab host without systemd. Each test begins and ends without claims.

The directories below need other options of `lab run`: pytest collects them only when they are named.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.product.host import Host
from tests.rig.api import Api
from tests.rig.evidence import pytest_runtest_makereport
from tests.rig.figures import figures, pytest_configure, pytest_terminal_summary
from tests.rig.gpu import Gpu
from tests.rig.guest import Guests, libvirt_guests
from tests.rig.product import deployed

__all__ = ["figures", "pytest_configure", "pytest_runtest_makereport", "pytest_terminal_summary"]

LANES = ("virtual_time", "systemd", "reboot")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    name = collection_path.name
    return True if name in LANES and not any(name in argument for argument in config.args) else None


@pytest.fixture(scope="session")
def installation() -> Host:
    return Host(product=deployed(), api=Api(), gpu=Gpu.attached())


@pytest.fixture
def host(installation: Host) -> Iterator[Host]:
    yield installation
    installation.clear()


@pytest.fixture(scope="session")
def libvirt_session(installation: Host) -> Iterator[Guests]:
    with libvirt_guests() as guests:
        yield guests


@pytest.fixture
def guests(host: Host, libvirt_session: Guests) -> Iterator[Guests]:
    yield libvirt_session
    libvirt_session.destroy()
    libvirt_session.started.clear()
    libvirt_session.defined.clear()
