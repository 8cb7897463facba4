# SPDX-License-Identifier: Apache-2.0
"""The lab host as it is after a boot: nothing is started, and nothing is cleared for the next one."""

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
"""For what comes up by itself; emulated, all services of a host start at once."""


@pytest.fixture
def host() -> Host:
    """The first boot deploys; after that the product has to be there by itself."""
    if os.environ["LAB_BOOT"] == "1":
        return Host(product=deployed(), api=Api(), gpu=Gpu.attached())
    eventually(_is_ours, what="the module is loaded and has its GPU", timeout_s=BOOT_S)
    return Host(product=Product(host="lab"), api=Api(), gpu=Gpu.attached())


def _is_ours() -> bool:
    """As udev's rule makes it."""
    attach = Path(f"/sys/bus/pci/drivers/vgpumgr/{ADDRESS}/vgpu/attach")
    return attach.exists() and attach.read_text().strip() == "permit"


@pytest.fixture
def guests(host: Host) -> Iterator[Guests]:
    with libvirt_guests(keep=True) as guests:
        yield guests
