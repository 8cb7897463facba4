# SPDX-License-Identifier: Apache-2.0
"""A deployed host reboots twice: in order, then by its reset button while the API is away. `story` sets the order.

One VM starts with the host, the other when somebody starts it. A test leaves in STORY what the test of the next boot
needs to know.
"""

import json
from pathlib import Path
from typing import Any

import libvirt
import pytest

from tests.product import hook
from tests.product.host import Host, new_uuid
from tests.product.reboot.conftest import BOOT_S
from tests.product.units import AGENT, API, HELPER, active, systemctl
from tests.rig.figures import Record
from tests.rig.guest import Guest, Guests
from tests.rig.product import eventually

STORY = Path("/var/lib/reboot-story.json")
WORK = """
vgpu-guest verify --json >/dev/null && echo vgpu.verified=1
vgpu-exercise saturate --json --op delay --delay-us 500 --seconds 3600
"""
MEASURED_S = 2
# libvirt-guests waits that long for guests to shut down, and our guests ignore the request
_GUESTS = Path("/etc/default/libvirt-guests")


def orders(host: Host) -> dict[str, Any]:
    """The epoch and generation of the desired state that the agent follows."""
    kept = host.remembered()
    return {name: kept[name] for name in ("epoch", "generation", "trusted")}


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def uptime_s() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def tell(host: Host, **more: Any) -> None:
    """Record for the next boot which values must be the same there, and which must differ."""
    before = json.loads(STORY.read_text()) if STORY.exists() else {}
    STORY.write_text(json.dumps({**before, "boot_id": boot_id(), "orders": orders(host), **more}))


def told() -> dict[str, Any]:
    story = dict(json.loads(STORY.read_text()))
    assert story["boot_id"] != boot_id()
    return story


def reboots(host: Host) -> int:
    """Wait until the API knows it."""
    return [event["kind"] for event in host.api.items("/v1/events")].count("host.rebooted")


def by_itself(host: Host, guests: Guests, story: dict[str, Any], figures: Record) -> Guest:
    """Wait for the VM that starts with the host. It works on its slice, and the host has no other device of ours."""
    for unit in (HELPER, AGENT):
        eventually(lambda one=unit: active(one), what=f"{unit} is active", timeout_s=BOOT_S)  # type: ignore[misc]
    slice_id = story["auto"]
    guest = guests.defined_before("auto")
    eventually(lambda: host.is_open(slice_id), what="the VM has started with its slice", timeout_s=BOOT_S)
    figures("a claimed VM has its slice again", uptime_s(), against=0, unit="s after the kernel's start")
    assert guest.vm_uuid == story["auto_vm"]
    guest.wait_for("^vgpu.verified=1", timeout_s=BOOT_S)
    assert host.devices() == {slice_id}
    eventually(lambda: host.records() == {slice_id}, what="what went with the last boot is forgotten")
    enforced = host.gpu.slice_stats(slice_id)
    assert (enforced.tenant, enforced.weight, enforced.scheduled) == ("blue", 400, True)
    return guest


def test_before(host: Host, guests: Guests) -> None:
    host.api.tenant("blue", share_permille=600)
    host.api.tenant("green", share_permille=200)
    vms = {"auto": new_uuid(), "manual": new_uuid()}
    slices = {
        "auto": host.claim("blue", share_permille=400, vm_uuid=vms["auto"]),
        "manual": host.claim("green", share_permille=200, vm_uuid=vms["manual"]),
    }
    for name, slice_id in slices.items():
        guests.define(
            name, vm_uuid=vms[name], command=WORK, slices=(slice_id,), metadata=hook.metadata(slice_id)
        )  # fmt: skip
    auto, manual = guests.defined
    auto.domain.setAutostart(1)
    auto.start()
    auto.wait_for("^vgpu.verified=1", timeout_s=BOOT_S)
    manual.domain.createWithFlags(libvirt.VIR_DOMAIN_START_PAUSED)
    assert host.devices() == host.records() == set(slices.values())
    assert host.weights() == {"blue": 400, "green": 200}
    assert reboots(host) == 0
    _GUESTS.write_text("SHUTDOWN_TIMEOUT=3\n")
    used = {name: host.product.used(name) for name in ("blue", "green")}
    tell(host, **slices, auto_vm=vms["auto"], manual_vm=vms["manual"], used=used)


def test_after_an_orderly_reboot(host: Host, guests: Guests, figures: Record) -> None:
    """Everything is as before the reboot without any help; the other VM starts when it is told to."""
    story = told()
    by_itself(host, guests, story, figures)
    eventually(host.api.answers, what="the API answers", timeout_s=BOOT_S)
    eventually(lambda: reboots(host) == 1, what="the API has heard of the reboot", timeout_s=BOOT_S)
    assert host.api.call("GET", "/v1/hosts/lab")["online"]
    assert orders(host) == story["orders"]
    assert {name: list(host.product.used(name)) for name in ("blue", "green")} == story["used"]
    assert host.weights() == {"blue": 400, "green": 200}

    slice_id, vm_uuid = story["manual"], story["manual_vm"]
    assert hook.refusal(story["auto"], vm_uuid=vm_uuid) == "claim.other_vm"
    assert hook.ask("prepare", slice_id, vm_uuid=vm_uuid)["ok"]
    host.gpu.wait_queued(story["auto"])
    with host.gpu.loaded({slice_id: {"op": "delay", "delay_us": 500}}):
        both = host.gpu.measured_over(MEASURED_S)
    figures("share after the reboot, weights 400 and 200", both.share["blue"], against=2 / 3, unit="of the used engine")
    assert both.share["blue"] > both.share["green"] > 0
    hook.ask("release", slice_id, vm_uuid=vm_uuid, reason="shutdown")

    manual = guests.defined_before("manual")
    eventually(lambda: host.devices() == {story["auto"]}, what="the device of the client is gone")
    manual.domain.createWithFlags(libvirt.VIR_DOMAIN_START_PAUSED)
    assert host.devices() == host.records() == {story["auto"], slice_id}
    # The host's last word from the API before the reset: delete this claim once nobody uses it.
    host.api.delete(slice_id)
    eventually(lambda: slice_id in {one["id"] for one in host.remembered()["tombstones"]}, what="the agent knows")
    systemctl("disable", "--now", API)
    tell(host)


def test_after_a_reset_with_the_api_away(host: Host, guests: Guests, figures: Record) -> None:
    """The claimed VM starts from the agent's stored state; the VM whose claim was deleted does not start."""
    story = told()
    auto = by_itself(host, guests, story, figures)
    assert not host.api.answers()
    assert orders(host) == story["orders"]
    with pytest.raises(libvirt.libvirtError, match=r"claim\.deleted"):
        guests.defined_before("manual").domain.create()
    assert host.devices() == host.records() == {story["auto"]}
    assert host.weights() == {"blue": 400}

    systemctl("enable", "--now", API)
    eventually(lambda: host.api.answers() and reboots(host) == 2, what="the API has heard of it", timeout_s=BOOT_S)
    eventually(lambda: host.api.slice(story["manual"]) is None, what="the deletion is confirmed", timeout_s=BOOT_S)
    assert list(host.product.used("blue")) == story["used"]["blue"]
    assert host.product.used("green") == (0, 0, 0)
    assert host.is_open(story["auto"])

    auto.destroy()
    eventually(host.empty, what="what the VM had is gone")
    host.clear()
    assert host.product.used("blue") == (0, 0, 0)
