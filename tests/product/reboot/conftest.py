# SPDX-License-Identifier: Apache-2.0
"""The lab host after a boot: the tests start no service, and leave everything in place for the next boot."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.product.host import Host
from tests.rig.api import Api
from tests.rig.gpu import ADDRESS, Gpu
from tests.rig.guest import Guests, libvirt_guests
from tests.rig.product import Product, deployed, eventually

BOOT_S = 300
"""The limit for services that come up by themselves; with emulation, all services of a host start at once."""


@pytest.fixture
def host() -> Host:
    """The first boot deploys the product; after later boots the product has to start by itself."""
    if os.environ["LAB_BOOT"] == "1":
        return Host(product=deployed(), api=Api(), gpu=Gpu.attached())
    eventually(_is_ours, what="the module is loaded and has its GPU", timeout_s=BOOT_S)
    return Host(product=Product(host="lab"), api=Api(), gpu=Gpu.attached())


def _is_ours() -> bool:
    """Create it the way udev's rule does."""
    attach = Path(f"/sys/bus/pci/drivers/vgpumgr/{ADDRESS}/vgpu/attach")
    return attach.exists() and attach.read_text().strip() == "permit"


@pytest.fixture
def guests(host: Host) -> Iterator[Guests]:
    with libvirt_guests(keep=True) as guests:
        yield guests
