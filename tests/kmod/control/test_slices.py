# SPDX-License-Identifier: Apache-2.0
"""Slices over netlink: valid settings, refused ones with their errors, and a check that a refusal changes nothing."""

import subprocess
import time

import pytest

from tests.kmod.control.given import GOOD, new_slice
from tests.rig.gpu import ADDRESS as GPU
from tests.rig.gpu import poll
from tests.rig.settings import refusal, unchanged
from tests.rig.vfio import opened
from vgpumgr.control.netlink import Control
from vgpumgr.control.sysfs import Sysfs
from vgpumgr.errors import (
    BusyError,
    OutOfRangeError,
)


def test_a_slice_moves_between_tenants_and_keeps_what_is_left_out(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host)
    control.set_tenant(GPU, "blue", **GOOD)
    control.set_slice(uuid, tenant="blue", weight=3, cap_us=100, cap_period_us=1000, burst_us=1500)
    control.set_slice(uuid, tenant="green")
    moved = control.slice(uuid)
    assert (moved.tenant, moved.scheduled) == ("green", False)
    assert (moved.weight, moved.cap_us, moved.cap_period_us, moved.burst_us) == (3, 100, 1000, 1500)
    control.set_slice(uuid, tenant="blue", weight=4)
    back = control.slice(uuid)
    assert (back.tenant, back.scheduled, back.weight) == ("blue", True, 4)
    assert [tenant.name for tenant in control.tenants(GPU)] == ["blue"]
    control.set_slice(uuid, tenant="")
    assert control.slice(uuid).tenant == ""


@pytest.mark.parametrize("tenant", [None, "blue", "green"])
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"weight": 0}, "weight"),
        ({"weight": 10001}, "weight"),
        ({"cap_us": 100}, "cap-period-us"),
        ({"cap_us": 2000, "cap_period_us": 1000}, "cap-us"),
        ({"cap_us": 1, "cap_period_us": 100000}, "cap-us"),
        ({"cap_period_us": 99}, "cap-period-us"),
        ({"cap_us": 100, "cap_period_us": 1000, "burst_us": 1}, "burst-us"),
    ],
)
def test_a_bad_parameter_of_a_slice_is_refused(
    control: Control, host: Sysfs, options: dict[str, int], field: str, tenant: str | None
) -> None:
    uuid = new_slice(host)
    control.set_tenant(GPU, "blue", **GOOD)
    if tenant:
        control.set_slice(uuid, tenant="blue")
    with unchanged(control, host):
        error = refusal(lambda: control.set_slice(uuid, tenant=tenant, **options))
    assert isinstance(error, OutOfRangeError), str(error)
    assert error.field == field


def test_the_tenant_of_an_open_slice_stays(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host)
    control.set_tenant(GPU, "blue", **GOOD)
    control.set_slice(uuid, tenant="blue")
    with opened(uuid):
        assert control.slice(uuid).open
        with unchanged(control, host):
            for tenant in ("green", ""):
                error = refusal(lambda name=tenant: control.set_slice(uuid, tenant=name, weight=9))  # type: ignore[misc]
                assert isinstance(error, BusyError)
                assert error.field == "tenant"
        control.set_slice(uuid, tenant="blue", weight=9)
        assert control.slice(uuid).weight == 9
    poll(lambda: not control.slice(uuid).open)
    control.set_slice(uuid, tenant="green")


def test_a_slice_runs_nothing_until_its_tenant_is_configured(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host)
    control.set_slice(uuid, tenant="blue")
    command = ["vgpu-client", uuid, "saturate", "--op", "delay", "--delay-us", "100", "--seconds", "60"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as client:
        try:
            poll(lambda: control.slice(uuid).queued >= 8)
            waiting = control.slice(uuid)
            assert (waiting.items, waiting.run_ns, waiting.scheduled) == (0, 0, False)
            assert host.read(uuid, "state") == "inert"
            picks = control.gpu(GPU).picks
            time.sleep(0.5)
            assert control.gpu(GPU).picks == picks, "something wakes the engine"
            control.set_tenant(GPU, "blue", **GOOD)
            poll(lambda: control.slice(uuid).items > 100)
            assert host.read(uuid, "state") in ("ready", "idle")
        finally:
            client.kill()
    poll(lambda: not control.slice(uuid).open)
    done = control.tenant(GPU, "blue")
    assert done.run_ns > 0
    assert done.histogram.total == done.runs > 0
