# SPDX-License-Identifier: Apache-2.0
"""The attributes of a slice in sysfs."""

import errno

import pytest

from tests.kmod.control.given import GOOD, new_slice
from tests.rig.gpu import ADDRESS as GPU
from tests.rig.kernel import kernel_log
from tests.rig.settings import refusal, unchanged
from vgpumgr.control.netlink import Control
from vgpumgr.control.sysfs import Sysfs
from vgpumgr.errors import (
    BusyError,
)


@pytest.mark.usefixtures("quiet_log")
def test_the_log_names_what_refuses_a_cap(control: Control, host: Sysfs) -> None:
    """A burst set by netlink applies from the first cap on; no attribute shows it."""
    uuid = new_slice(host)
    control.set_slice(uuid, burst_us=1)
    for config, field in (
        ("cap_us=500 cap_period_us=10000", "burst_us"),
        ("cap_us=10001 cap_period_us=10000", "cap_us"),
        ("weight=0 cap_us=500 cap_period_us=10000", "weight"),
    ):
        with unchanged(control, host):
            error = refusal(lambda text=config: host.write(uuid, "sched_config", text))  # type: ignore[misc]
        assert error.errno == errno.ERANGE
        assert f"{uuid}: attribute sched_config refused for {field}: -ERANGE\n" in kernel_log()


def test_attributes_are_writable_until_a_tenant_is_set(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host, "mem64m")
    assert host.read(uuid, "tenant") == ""
    assert host.read(uuid, "state") == "inert"
    assert int(host.read(uuid, "memory_bytes")) == 64 << 20
    for attribute, value in (("weight", 7), ("cap_period_us", 10000), ("cap_us", 2000), ("tenant", "blue")):
        host.write(uuid, attribute, value)
        assert host.read(uuid, attribute) == str(value)
    found = control.slice(uuid)
    assert (found.tenant, found.weight, found.cap_us, found.cap_period_us) == ("blue", 7, 2000, 10000)
    with unchanged(control, host):
        for attribute, value in (
            ("weight", 8),
            ("cap_us", 1),
            ("cap_period_us", 20000),
            ("tenant", "green"),
            ("sched_config", "tenant=green weight=2"),
        ):
            error = refusal(lambda name=attribute, text=value: host.write(uuid, name, text))  # type: ignore[misc]
            assert isinstance(error, BusyError)
            assert error.field == attribute
    control.set_slice(uuid, weight=9)
    assert host.read(uuid, "weight") == "9", "a mirror shows what netlink has set"
    control.set_tenant(GPU, "blue", **GOOD)
    assert host.read(uuid, "state") == "idle"


@pytest.mark.parametrize(
    ("attribute", "value", "number"),
    [
        ("weight", "0", errno.ERANGE),
        ("weight", "10001", errno.ERANGE),
        ("weight", "4294967296", errno.ERANGE),
        ("weight", "-1", errno.EINVAL),
        ("weight", "", errno.EINVAL),
        ("weight", "1 2", errno.EINVAL),
        ("cap_us", "100", errno.ERANGE),
        ("cap_period_us", "99", errno.ERANGE),
        ("cap_period_us", "1000001", errno.ERANGE),
        ("permit", "2", errno.EINVAL),
        ("permit", "-1", errno.EINVAL),
        ("permit", "yes", errno.EINVAL),
        ("sched_config", "weight=2 colour=blue", errno.EINVAL),
        ("sched_config", "weight=2 cap_us", errno.EINVAL),
        ("sched_config", "tenant=blue weight=0", errno.ERANGE),
        ("sched_config", "tenant=blue cap_us=3 cap_period_us=2", errno.ERANGE),
        ("sched_config", "tenant=b/lue weight=3", errno.EINVAL),
        ("sched_config", "weight=2\0", errno.EINVAL),
        ("tenant", "blue\0green", errno.EINVAL),
    ],
)
def test_a_bad_attribute_of_a_slice_is_refused(
    control: Control, host: Sysfs, attribute: str, value: str, number: int
) -> None:
    uuid = new_slice(host)
    with unchanged(control, host):
        error = refusal(lambda: host.write(uuid, attribute, value))
    assert (error.errno, error.field) == (number, attribute), str(error)


def test_sched_config_sets_everything_at_once(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host)
    assert host.read(uuid, "sched_config") == "tenant= weight=1 cap_us=0 cap_period_us=0"
    host.write(uuid, "sched_config", "cap_period_us=5000 cap_us=1000 weight=6")
    assert host.read(uuid, "sched_config") == "tenant= weight=6 cap_us=1000 cap_period_us=5000"
    host.write(uuid, "sched_config", host.read(uuid, "sched_config"))
    host.write(uuid, "sched_config", "tenant=blue")
    assert host.read(uuid, "sched_config") == "tenant=blue weight=6 cap_us=1000 cap_period_us=5000"
    assert control.tenant(GPU, "blue").slices == 1


def test_a_slice_shows_the_pci_ids_that_a_vm_finds(host: Sysfs) -> None:
    uuid = new_slice(host)
    assert (host.read(uuid, "vendor"), host.read(uuid, "device")) == ("0x1234", "0x5647")
