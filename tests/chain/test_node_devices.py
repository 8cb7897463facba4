# SPDX-License-Identifier: Apache-2.0
"""Slices as node devices of an unmodified libvirt: defined with attributes, started, refused.

The GPU is bound to our driver, or its vendor's driver keeps it.
"""

import re
import subprocess
import uuid as uuids
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.chain.guests import NODE_DEVICE, virsh
from tests.rig import vendor
from tests.rig.gpu import Gpu, poll
from tests.rig.guest import Guests
from vgpumgr.control.sysfs import DRIVER

XML = """
<device>
  <parent>{parent}</parent>
  <capability type='mdev'>
    <type id='{driver}-mem16m'/>
    <uuid>{uuid}</uuid>
    {attributes}
  </capability>
</device>
"""


@contextmanager
def defined(folder: Path, *, driver: str = DRIVER, **attributes: str) -> Iterator[tuple[str, str]]:
    """UUID and node device of a slice that libvirt knows and has not started."""
    uuid = str(uuids.uuid4())
    described = "".join(f"<attr name='{name}' value='{value}'/>" for name, value in attributes.items())
    path = folder / "slice.xml"
    path.write_text(XML.format(parent=NODE_DEVICE, driver=driver, uuid=uuid, attributes=described))
    name = virsh("nodedev-define", str(path)).split("'")[1]
    try:
        yield uuid, name
    finally:
        virsh("nodedev-undefine", name)


def test_libvirt_starts_a_slice_with_its_attributes(gpu: Gpu, guests: Guests, tmp_path: Path) -> None:
    with defined(tmp_path, sched_config="tenant=blue weight=5") as (uuid, name):
        virsh("nodedev-start", name)
        found = gpu.slice_stats(uuid)
        virsh("nodedev-destroy", name)
    assert (found.tenant, found.weight) == ("blue", 5)
    assert uuid not in gpu.slices()


@pytest.mark.parametrize(
    "attributes",
    [{"weight": "10001"}, {"sched_config": "tenant=blue speed=9"}, {"tenant": "blue", "weight": "2"}],
)
def test_libvirt_starts_no_slice_with_a_bad_attribute(
    gpu: Gpu, guests: Guests, tmp_path: Path, attributes: dict[str, str]
) -> None:
    with defined(tmp_path, **attributes) as (uuid, name):
        with pytest.raises(subprocess.CalledProcessError) as caught:
            virsh("nodedev-start", name)
        assert f"to attribute {list(attributes)[-1]}" in caught.value.stderr
        assert uuid not in gpu.slices()


def mdevctl(*arguments: str) -> str:
    return subprocess.run(["mdevctl", *arguments], check=True, capture_output=True, text=True).stdout


def mdev_types() -> list[str]:
    """The mdev types that libvirt finds in the function's node device."""
    described = ET.fromstring(virsh("nodedev-dumpxml", NODE_DEVICE))
    return sorted(kind.get("id", "") for kind in described.findall(".//capability[@type='mdev_types']/type"))


def is_active(name: str) -> bool:
    """Whether libvirt knows the device. libvirt reads mdevctl's definitions some time after they have changed."""
    return re.search(r"^Active: +yes$", virsh("nodedev-info", name), re.MULTILINE) is not None


def test_libvirt_and_mdevctl_see_an_adopted_gpu_as_any(gpu: Gpu, guests: Guests, tmp_path: Path) -> None:
    """libvirt and mdevctl find its types, and start slices with attributes, without any configuration. Then its driver
    releases it."""
    with vendor.has_function(gpu.sysfs), vendor.adopted(gpu):
        poll(lambda: len(mdev_types()) == 4)
        assert mdev_types() == [f"{vendor.DRIVER}-{name}" for name in ("mem16m", "mem1g", "mem256m", "mem64m")]
        assert f"<driver>\n    <name>{vendor.DRIVER}</name>" in virsh("nodedev-dumpxml", NODE_DEVICE)
        assert f"{vendor.DRIVER}-mem16m" in mdevctl("types")
        with defined(tmp_path, driver=vendor.DRIVER, sched_config="tenant=blue weight=5") as (uuid, name):
            virsh("nodedev-start", name)
            found = gpu.slice_stats(uuid)
            listed = mdevctl("list")
            poll(lambda: is_active(name))
            virsh("nodedev-destroy", name)
        assert (found.tenant, found.weight) == ("blue", 5)
        assert f"{uuid} {gpu.address} {vendor.DRIVER}-mem16m" in listed
        gpu.control.release_gpu(gpu.address)
        poll(lambda: mdev_types() == [])
