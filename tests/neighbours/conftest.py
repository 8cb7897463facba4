# SPDX-License-Identifier: Apache-2.0
"""Two connected lab hosts, each with its own kernel, accelerator and libvirt. These tests run in the first."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

import libvirt
import pytest

from tests.chain.conftest import guests, libvirt_session
from tests.neighbours.far_side import ADDRESS, KEY, PORT, Connection, FarSide
from tests.rig.evidence import pytest_runtest_makereport
from tests.rig.fixtures import gpu, module
from tests.rig.gpu import poll
from tests.rig.kernel import PATIENCE

__all__ = ["gpu", "guests", "libvirt_session", "module", "pytest_runtest_makereport"]

BOOT_S = 300


@pytest.fixture(scope="session")
def far_session() -> Iterator[FarSide]:
    """The connection to the other lab host, which ends with the tests."""
    deadline = time.monotonic() + BOOT_S * PATIENCE
    connection = Connection(address=(ADDRESS, PORT), authkey=KEY)
    while True:
        try:
            connection.connect()
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    far: FarSide = connection.far()  # type: ignore[attr-defined]
    yield far
    far.end()


@pytest.fixture
def far(far_session: FarSide) -> Iterator[FarSide]:
    """The other lab host, with an accelerator without slices and tenants."""
    yield far_session
    far_session.clear()


@pytest.fixture
def there(guests: object, far: FarSide) -> Iterator[libvirt.virConnect]:
    """The other host's libvirt. VMs that run there end with the test."""
    connection = libvirt.open(f"qemu+tcp://{ADDRESS}/system")
    yield connection
    for domain in connection.listAllDomains():
        with suppress(libvirt.libvirtError):
            domain.destroy()
    poll(lambda: not connection.listAllDomains())
    connection.close()


@pytest.fixture
def wire() -> Iterator[None]:
    """The link between the hosts, which a test may cut."""
    yield
    set_wire("up")


def set_wire(state: str) -> None:
    """Set the link `up` or `down`."""
    subprocess.run(["ip", "link", "set", "eth0", state], check=True)
