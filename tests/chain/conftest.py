# SPDX-License-Identifier: Apache-2.0
"""Real guests under libvirt with slices attached; these tests run inside a lab host."""

from collections.abc import Iterator

import libvirt
import pytest

from tests.rig.evidence import pytest_runtest_makereport
from tests.rig.figures import figures, pytest_configure, pytest_terminal_summary
from tests.rig.fixtures import gpu, module, second_gpu
from tests.rig.gpu import Gpu, poll
from tests.rig.guest import Guests, libvirt_guests
from tests.rig.second_libvirt import second_libvirt

__all__ = [
    "figures",
    "gpu",
    "module",
    "pytest_configure",
    "pytest_runtest_makereport",
    "pytest_terminal_summary",
    "second_gpu",
]


@pytest.fixture(scope="session")
def libvirt_session(module: Gpu) -> Iterator[Guests]:
    with libvirt_guests() as guests:
        yield guests


@pytest.fixture
def guests(libvirt_session: Guests, gpu: Gpu) -> Iterator[Guests]:
    """On an accelerator without slices; destroyed at the end, before the slices are removed."""
    yield libvirt_session
    libvirt_session.destroy()
    libvirt_session.started.clear()
    for uuid in gpu.slices():
        poll(lambda uuid=uuid: not gpu.slice_stats(uuid).open)  # type: ignore[misc]


@pytest.fixture
def there(guests: Guests, second_gpu: Gpu) -> Iterator[libvirt.virConnect]:
    """A second libvirt, which looks like another host to the first."""
    with second_libvirt() as connection:
        yield connection
    poll(lambda: not any(one.open for one in second_gpu.slices().values()))
