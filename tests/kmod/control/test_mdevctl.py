# SPDX-License-Identifier: Apache-2.0
"""Slices that mdevctl defines, starts and stops."""

import errno
import os
import subprocess
import uuid as uuids
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.kmod.control.given import new_slice
from tests.rig.gpu import ADDRESS as GPU
from tests.rig.kernel import kernel_log
from tests.rig.settings import unchanged
from vgpumgr.control.netlink import Control
from vgpumgr.control.sysfs import Sysfs


def mdevctl(*arguments: str) -> str:
    return subprocess.run(["mdevctl", *arguments], check=True, capture_output=True, text=True).stdout


def test_mdevctl_lists_types_and_slices(host: Sysfs) -> None:
    uuid = new_slice(host)
    types = mdevctl("types")
    assert GPU in types
    assert "vgpumgr-mem16m" in types
    assert "vfio-pci" in types
    assert f"{uuid} {GPU} vgpumgr-mem16m" in mdevctl("list")


def test_mdevctl_starts_a_slice_with_its_attributes(control: Control, host: Sysfs) -> None:
    uuid = str(uuids.uuid4())
    mdevctl("define", "--uuid", uuid, "--parent", GPU, "--type", "vgpumgr-mem16m")
    try:
        mdevctl("modify", "--uuid", uuid, "--addattr", "sched_config", "--value", "tenant=blue weight=5")
        mdevctl("start", "--uuid", uuid)
        found = control.slice(uuid)
        assert (found.tenant, found.weight) == ("blue", 5)
        mdevctl("stop", "--uuid", uuid)
        assert not host.exists(uuid)
    finally:
        mdevctl("undefine", "--uuid", uuid)


@contextmanager
def defined(**attributes: str) -> Iterator[str]:
    """A slice that mdevctl has defined and not started, with attributes in this order."""
    uuid = str(uuids.uuid4())
    mdevctl("define", "--uuid", uuid, "--parent", GPU, "--type", "vgpumgr-mem16m")
    try:
        for name, value in attributes.items():
            mdevctl("modify", "--uuid", uuid, "--addattr", name, "--value", value)
        yield uuid
    finally:
        mdevctl("undefine", "--uuid", uuid)


def test_mdevctl_starts_a_slice_with_single_attributes_of_which_the_tenant_is_the_last(
    control: Control, host: Sysfs
) -> None:
    with defined(weight="7", cap_period_us="10000", cap_us="500", tenant="blue") as uuid:
        mdevctl("start", "--uuid", uuid)
        found = control.slice(uuid)
        mdevctl("stop", "--uuid", uuid)
    assert (found.tenant, found.weight, found.cap_us, found.cap_period_us) == ("blue", 7, 500, 10000)


MDEVCTL_FAULTS = [
    ({"weight": "10001"}, errno.ERANGE, "weight"),
    ({"cap_us": "500"}, errno.ERANGE, "cap_period_us"),
    ({"tenant": "no such name"}, errno.EINVAL, "tenant"),
    ({"tenant": "blue", "weight": "2"}, errno.EBUSY, "tenant"),
    ({"sched_config": "tenant=blue weight=0"}, errno.ERANGE, "weight"),
    ({"sched_config": "tenant=blue speed=9"}, errno.EINVAL, "speed"),
    ({"sched_config": "tenant=blue weight"}, errno.EINVAL, "weight"),
]


@pytest.mark.usefixtures("quiet_log")
@pytest.mark.parametrize(("attributes", "number", "field"), MDEVCTL_FAULTS)
def test_mdevctl_starts_no_slice_with_a_bad_attribute(
    control: Control, host: Sysfs, attributes: dict[str, str], number: int, field: str
) -> None:
    """The user gets the error, the kernel's log names slice and field, and nothing is left."""
    with unchanged(control, host), defined(**attributes) as uuid:
        with pytest.raises(subprocess.CalledProcessError) as caught:
            mdevctl("start", "--uuid", uuid)
        assert os.strerror(number) in caught.value.stderr
        assert not host.exists(uuid)
    name = list(attributes)[-1]
    assert f"{uuid}: attribute {name} refused for {field}: -{errno.errorcode[number]}" in kernel_log()
