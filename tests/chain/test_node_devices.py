# SPDX-License-Identifier: Apache-2.0
"""Slices as libvirt's node devices: defined with attributes, started, refused; libvirt as it is."""

import subprocess
import uuid as uuids
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chain.guests import NODE_DEVICE, virsh
from tests.rig.gpu import Gpu
from tests.rig.guest import Guests

XML = """
<device>
  <parent>{parent}</parent>
  <capability type='mdev'>
    <type id='vgpumgr-mem16m'/>
    <uuid>{uuid}</uuid>
    {attributes}
  </capability>
</device>
"""


@contextmanager
def defined(folder: Path, **attributes: str) -> Iterator[tuple[str, str]]:
    """UUID and node device of a slice that libvirt knows and has not started."""
    uuid = str(uuids.uuid4())
    described = "".join(f"<attr name='{name}' value='{value}'/>" for name, value in attributes.items())
    path = folder / "slice.xml"
    path.write_text(XML.format(parent=NODE_DEVICE, uuid=uuid, attributes=described))
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
