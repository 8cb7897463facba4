# SPDX-License-Identifier: Apache-2.0
"""Which VMs libvirt starts, with which devices, and what is left when they end. The VMs are paused: QEMU has its slices
open, and no guest runs.
"""

import os
import re
import signal
import subprocess

import libvirt
import pytest

from tests.product import hook
from tests.product.host import CLASS, Host, new_uuid
from tests.product.services import AGENT
from tests.rig.gpu import Gpu
from tests.rig.guest import Guest, Guests
from tests.rig.product import eventually

REFUSED = r"Hook script execution failed: .*unexpected exit status 1: (?P<reason>[^\n]+) \(vgpumgr: (?P<code>[\w.]+)\)"


def defined(guests: Guests, name: str, *slices: str, named: tuple[str, ...] = (), vm_uuid: str | None = None) -> Guest:
    """A domain with devices for `slices` whose metadata names `named`."""
    metadata = hook.metadata(*named) if named else ""
    return guests.define(name, vm_uuid=vm_uuid or new_uuid(), command="true", slices=slices, metadata=metadata)


def refused(guest: Guest) -> str:
    """Return the code in libvirt's error, which follows one short line of ours."""
    with pytest.raises(libvirt.libvirtError) as error:
        guest.start(paused=True)
    match = re.search(REFUSED, str(error.value))
    assert match, str(error.value)
    assert len(match["reason"]) < 300
    assert not guest.running()
    return match["code"]


def test_no_vm_starts_without_a_claim_of_its_own(host: Host, guests: Guests) -> None:
    """Metadata alone, a device alone, or another VM's slice start no VM, and no device is made."""
    host.api.tenant("blue", share_permille=500)
    others = host.claim("blue", share_permille=250, vm_uuid=new_uuid())
    stray = new_uuid()
    host.gpu.sysfs.create(host.gpu.address, f"vgpumgr-{CLASS}", stray)
    try:
        invented = new_uuid()
        assert refused(defined(guests, "invented", invented, named=(invented,))) == "claim.missing"
        assert refused(defined(guests, "only-named", named=(invented,))) == "claim.missing"
        assert refused(defined(guests, "stray", stray)) == "claim.missing"
        assert refused(defined(guests, "thief", others, named=(others,))) == "claim.other_vm"
        assert refused(defined(guests, "quiet-thief", others)) == "claim.other_vm"
        assert host.devices() == {stray}
        assert host.gpu.sysfs.permit_s(stray) == 0
        assert host.records() == set()
    finally:
        host.gpu.sysfs.remove(stray)


def test_a_device_lives_as_long_as_its_vm_and_the_claim_longer(host: Host, guests: Guests) -> None:
    """Stopped, killed and destroyed VMs; `virsh save`, which this device does not allow, does no harm."""
    host.api.tenant("blue", share_permille=500)
    vm_uuid = new_uuid()
    slice_id = host.claim("blue", share_permille=250, vm_uuid=vm_uuid)
    guest = defined(guests, "one", slice_id, named=(slice_id,), vm_uuid=vm_uuid)
    used = host.product.used("blue")
    assert used == (250, 16 << 20, 1)
    assert host.empty()

    def running_with_its_slice() -> None:
        guest.start(paused=True)
        found = host.gpu.slice_stats(slice_id)
        assert (found.open, found.tenant, found.weight, found.scheduled) == (True, "blue", 250, True)
        assert host.gpu.sysfs.slice_type(slice_id) == f"vgpumgr-{CLASS}"
        assert host.memory_reserved() == 16 << 20
        assert host.records() == {slice_id}

    running_with_its_slice()
    with pytest.raises(libvirt.libvirtError):
        guest.domain.save("/tmp/saved")
    assert host.is_open(slice_id)

    os.kill(guest.qemu_pid(), signal.SIGKILL)
    eventually(host.empty, what="device, record and memory of the killed VM are gone")
    eventually(lambda: not guest.running(), what="libvirt has noticed")
    host.wait_claimed(slice_id)
    claim = host.api.slice(slice_id)
    assert claim is not None
    assert (claim["state"], claim["vm_uuid"]) == ("claimed", vm_uuid)

    running_with_its_slice()
    guest.destroy()
    eventually(host.empty, what="what the destroyed VM had is gone")
    for _ in range(2):  # libvirt may report it again, and late
        assert hook.ask("release", slice_id, vm_uuid=vm_uuid, reason="destroyed")["ok"]
    running_with_its_slice()
    assert hook.ask("release", slice_id, vm_uuid=new_uuid(), reason="destroyed")["ok"]
    assert hook.ask("reconnect", slice_id, vm_uuid=vm_uuid)["ok"]
    assert host.is_open(slice_id)
    guest.destroy()
    eventually(host.empty, what="what the VM had is gone again")
    assert host.product.used("blue") == used


def test_a_start_that_fails_after_us_leaves_nothing(host: Host, guests: Guests) -> None:
    """Its second device, from another vendor, is missing: libvirt gives up after the slice has been made."""
    host.api.tenant("blue", share_permille=500)
    vm_uuid = new_uuid()
    slice_id = host.claim("blue", share_permille=250, vm_uuid=vm_uuid)
    guest = defined(guests, "failing", slice_id, new_uuid(), named=(slice_id,), vm_uuid=vm_uuid)
    log_before = AGENT.log.read_text()
    with pytest.raises(libvirt.libvirtError) as error:
        guest.start(paused=True)
    assert "vgpumgr:" not in str(error.value)
    assert f"may start with {slice_id}" in AGENT.log.read_text().removeprefix(log_before)
    eventually(host.empty, what="what was made for it is gone")
    host.play(slice_id, vm_uuid=vm_uuid)


def test_without_the_agent_only_vms_that_are_not_ours_start(host: Host, guests: Guests) -> None:
    host.api.tenant("blue", share_permille=500)
    vm_uuid = new_uuid()
    slice_id = host.claim("blue", share_permille=250, vm_uuid=vm_uuid)
    ours = defined(guests, "ours", slice_id, named=(slice_id,), vm_uuid=vm_uuid)
    foreign = defined(guests, "foreign")
    AGENT.kill()
    try:
        foreign.start(paused=True)
        assert foreign.running()
        assert refused(ours) == "agent.unavailable"
        assert host.devices() == set()
    finally:
        AGENT.start()
    ours.start(paused=True)
    assert host.is_open(slice_id)


def told(host: Host) -> list[str]:
    """The problems in the host's last report."""
    return list(host.api.call("GET", f"/v1/hosts/{host.product.host}")["refusals"])


def test_a_gpu_without_a_driver_and_one_without_the_module_are_bound_again(host: Host, guests: Guests) -> None:
    """Only the running agent asks udev to act, and VMs start again."""
    host.api.tenant("blue", share_permille=500)
    vm_uuid = new_uuid()
    slice_id = host.claim("blue", share_permille=250, vm_uuid=vm_uuid)
    guest = defined(guests, "one", slice_id, named=(slice_id,), vm_uuid=vm_uuid)

    host.gpu.sysfs.unbind(host.gpu.address)
    eventually(host.has_its_gpu, what="the GPU is bound again", timeout_s=120)

    def unloaded() -> bool:
        return subprocess.run(["rmmod", "vgpumgr"], check=False, capture_output=True, timeout=60).returncode == 0

    eventually(unloaded, what="the module is unloaded, once nobody asks it anything")
    eventually(host.has_its_gpu, what="the module is loaded again, and has the GPU", timeout_s=120)
    host.gpu.control.close()  # it still names the module, which is gone
    host.gpu = Gpu.attached()
    eventually(lambda: not told(host), what="the API hears that nothing is wrong")
    guest.start(paused=True)
    assert host.is_open(slice_id)


def test_a_gpu_of_another_driver_is_left_to_it_and_the_api_hears_why(host: Host) -> None:
    subprocess.run(["modprobe", "pci-stub"], check=True, timeout=60)
    host.gpu.sysfs.bind(host.gpu.address, "pci-stub")
    eventually(lambda: any(reason.endswith("(gpu.held)") for reason in told(host)), what="the API hears of it")
    assert host.gpu.sysfs.driver(host.gpu.address) == "pci-stub"
    host.gpu.sysfs.unbind(host.gpu.address)
    eventually(host.has_its_gpu, what="the GPU is bound again", timeout_s=120)
    host.gpu = Gpu.attached()
    eventually(lambda: not told(host), what="the API hears that nothing is wrong")
