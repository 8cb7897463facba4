# SPDX-License-Identifier: Apache-2.0
"""Quotas that change while VMs run: the kernel follows, the VMs are not touched."""

import pytest

from tests.product.host import Host, new_uuid
from tests.rig.product import CommandFailedError, eventually


def test_a_quota_is_cut_and_raised_under_running_vms(host: Host) -> None:
    """A quota cut below use scales every slice of the tenant alike; raised again, each slice has its own share back."""
    host.api.tenant("blue", share_permille=600)
    host.api.tenant("green", share_permille=200)
    vms = {name: new_uuid() for name in ("large", "small", "green")}
    large = host.claim("blue", share_permille=400, vm_uuid=vms["large"])
    small = host.claim("blue", share_permille=200, vm_uuid=vms["small"])
    other = host.claim("green", share_permille=200, vm_uuid=vms["green"])
    for slice_id, name in ((large, "large"), (small, "small"), (other, "green")):
        host.play(slice_id, vm_uuid=vms[name])

    def enforced() -> dict[str, tuple[int, ...]]:
        slices = host.gpu.slices()
        groups = host.gpu.tenants()
        return {
            "blue": (groups["blue"].weight, slices[large].weight, slices[small].weight, groups["blue"].timeslice_us),
            "green": (groups["green"].weight, slices[other].weight, groups["green"].timeslice_us),
        }

    def untouched() -> bool:
        return all(client.process.poll() is None and host.is_open(one) for one, (_, client) in host.played.items())

    full = {"blue": (600, 400, 200, 1000), "green": (200, 200, 1000)}
    eventually(lambda: enforced() == full, what="as claimed")
    host.product.text("set", "quota", "blue", "--share-permille", "300", "--timeslice-us", "2000")
    eventually(lambda: enforced() == {**full, "blue": (300, 200, 100, 2000)}, what="the cut is enforced")
    assert untouched()
    with pytest.raises(CommandFailedError, match=r"quota\.exceeded") as error:
        host.product.claim("blue", "p200")
    assert error.value.status == 5
    eventually(lambda: applied(host, large) == 200, what="the host has said so")

    host.product.text("set", "quota", "blue", "--share-permille", "600", "--timeslice-us", "1000")
    eventually(lambda: enforced() == full, what="the raise is enforced")
    eventually(lambda: applied(host, large) == 400, what="the host has said so")
    assert untouched()
    assert set(host.devices()) == {large, small, other}


def applied(host: Host, slice_id: str) -> int | None:
    """The quota that the host reports as enforced."""
    found = host.api.slice(slice_id)
    return found["enforcement"]["applied_permille"] if found else None
