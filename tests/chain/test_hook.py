# SPDX-License-Identifier: Apache-2.0
"""Our hook in a real libvirt: the errors that a user sees, and the fate of VMs while the agent is down."""

import os
import re
import signal
import subprocess
import time
import uuid as uuids
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import libvirt
import pytest

from tests.chain.hook_host import (
    FRONT,
    STATE,
    Agent,
    Vm,
    install,
    remove,
    restart_libvirtd,
    virsh,
)
from tests.rig.figures import Record
from tests.rig.gpu import Gpu, poll
from tests.rig.guest import Guest, Guests

WHY = "slice 5c1e is not claimed for this VM: claim it with `vgpumgr create slice`"
EMPTY = "#!/bin/sh\nexit 0\n"
CALLS = 10


@pytest.fixture(scope="module")
def installed(libvirt_session: Guests) -> Iterator[Agent]:
    install()
    agent = Agent()
    yield agent
    agent.stop()
    remove()


@pytest.fixture
def agent(installed: Agent, gpu: Gpu) -> Iterator[Agent]:
    """The agent runs and accepts everything."""
    installed.agree()
    installed.forget()
    installed.start()
    yield installed
    installed.agree()


@pytest.fixture
def vms(agent: Agent) -> Iterator[list[Vm]]:
    """The VMs in the list are removed at the end."""
    made: list[Vm] = []
    yield made
    for vm in made:
        vm.remove()


def made(vms: list[Vm], vm: Vm) -> Vm:
    vm.define(libvirt.open("qemu:///system"))
    vms.append(vm)
    return vm


def test_a_refusal_is_the_users_error_and_changes_nothing(agent: Agent, vms: list[Vm]) -> None:
    """Every attempt is refused, and each time libvirt releases a slice that was never bound."""
    vm = made(vms, Vm.ours("refused", str(uuids.uuid4())))
    agent.refuse("claim.none", WHY)
    for attempt in (1, 2):
        done = virsh("start", vm.name)
        assert done.returncode != 0
        assert f"unexpected exit status 1: {WHY} (vgpumgr: claim.none)" in done.stderr
        assert vm.state()[0] == libvirt.VIR_DOMAIN_SHUTOFF
        assert agent.calls(vm) == [("prepare", "refused"), ("release", "failed")] * attempt


def test_without_agent_only_what_is_ours_does_not_start(agent: Agent, vms: list[Vm]) -> None:
    """Other VMs start, even if their XML is larger than the pipe through which libvirt passes it to the hook."""
    agent.stop()
    vm = made(vms, Vm.ours("unasked", str(uuids.uuid4())))
    with pytest.raises(libvirt.libvirtError, match="the agent does not decide about this VM's slices") as refused:
        vm.start()
    assert "systemctl status vgpumgr-agent" in str(refused.value)
    other = made(vms, Vm("other", f"<x:notes xmlns:x='urn:example'>{'n' * 300_000}</x:notes>"))
    other.start()
    assert other.running()


def test_a_vm_survives_restarts_of_libvirtd_and_the_agent_learns_how_it_ends(
    agent: Agent, vms: list[Vm], gpu: Gpu, libvirt_session: Guests
) -> None:
    """libvirt restarts with the agent down, and with an agent that refuses: libvirt kills a VM whose `reconnect` fails.

    Then kill -9 of QEMU; the same VM starts again, and is destroyed.
    """
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    vm = made(vms, Vm.ours("survivor", gpu.slice("blue")))
    vm.start()
    pid = vm.qemu_pid()
    assert agent.calls(vm) == [("prepare", "survivor"), ("started", "survivor")]
    agent.stop()
    try:
        restart_libvirtd()
        assert vm.running()
        vm.domain().memoryStats()  # libvirt and its hook must be done with the VM first
        agent.refuse("claim.none", WHY)
        agent.start()
        restart_libvirtd()
        assert vm.running()
        # reported to the agent once it was running
        poll(lambda: agent.calls(vm)[2:] == [("started", "survivor")])
    finally:
        libvirt_session.connection = libvirt.open("qemu:///system")
    assert vm.qemu_pid() == pid

    agent.agree()
    agent.forget()
    os.kill(pid, signal.SIGKILL)
    poll(lambda: agent.calls(vm) == [("release", "crashed")])
    assert vm.state() == (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_CRASHED)
    vm.start()
    agent.forget()
    vm.domain().destroy()
    assert agent.calls(vm) == [("release", "destroyed")]


def test_saving_and_restoring(agent: Agent, vms: list[Vm]) -> None:
    """`restore` may be refused. Otherwise the hook prints nothing, because libvirt would take its output for the
    domain's XML."""
    vm = made(vms, Vm.ours("saved"))
    vm.start()
    before = vm.domain().XMLDesc()
    assert "vgpumgr:slices" in before
    agent.forget()
    image = STATE / "saved.image"
    vm.domain().save(str(image))
    assert agent.calls(vm) == [("release", "saved")]

    connection = libvirt.open("qemu:///system")
    agent.refuse("claim.none", WHY)
    with pytest.raises(libvirt.libvirtError, match="is not claimed for this VM"):
        connection.restoreFlags(str(image), None, libvirt.VIR_DOMAIN_SAVE_PAUSED)
    agent.agree()
    agent.forget()
    connection.restoreFlags(str(image), None, libvirt.VIR_DOMAIN_SAVE_PAUSED)
    # at `restore`, at `prepare`, at `started`
    assert agent.calls(vm) == [("prepare", "saved"), ("prepare", "saved"), ("started", "saved")]
    after = vm.domain()
    assert after.XMLDesc().replace(f"id='{after.ID()}'", "") == re.sub(r"(?<=kvm' )id='\d+'", "", before, count=1)
    # a domain whose XML a hook has changed is tainted
    assert not any("hook" in message for message in after.messages())


def test_a_vm_that_comes_from_another_host_needs_a_slice_that_is_prepared_here(
    agent: Agent, there: libvirt.virConnect, vms: list[Vm], gpu: Gpu, second_gpu: Gpu
) -> None:
    """A refused migration ends before any part of the VM is here, and the VM stays where it was. Only the new host's
    slices count."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    second_gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid, prepared, stranger = gpu.slice("blue"), second_gpu.slice("blue"), second_gpu.slice("blue")
    vm = made(vms, Vm("moving", slices=(uuid,), migratable=True))
    vm.start()
    guest = Guest(vm.name, vm.domain(), STATE / "console")
    pid = vm.qemu_pid()
    agent.forget()
    agent.refuse("claim.missing", WHY, prepared=(uuid, prepared))
    with pytest.raises(libvirt.libvirtError, match=re.escape(f"{WHY} (vgpumgr: claim.missing)")):
        guest.move(there, slices={uuid: stranger})
    assert agent.calls(vm) == [("prepare", "moving")]
    assert (vm.running(), vm.qemu_pid(), gpu.slice_stats(uuid).open) == (True, pid, True)
    assert there.listAllDomains() == []

    agent.forget()
    moved = guest.move(there, slices={uuid: prepared})
    # at `migrate`, at `prepare`, at `started`; then at the old host
    assert agent.calls(vm) == [
        ("prepare", "moving"),
        ("prepare", "moving"),
        ("started", "moving"),
        ("release", "migrated"),
    ]
    assert moved.running()
    assert (second_gpu.slice_stats(prepared).open, second_gpu.slice_stats(stranger).open) == (True, False)
    assert not vm.running()


@dataclass(frozen=True)
class Call:
    """A way to call the hook, and its exit status."""

    what: str
    hook: Path
    vm: Vm
    operation: str = "prepare"
    status: int = 0


def median_ms(calls: Sequence[Call]) -> list[float]:
    """Take turns, so that other load on the machine affects all of them."""
    lengths: list[list[float]] = [[] for _ in calls]
    documents = [call.vm.domain().XMLDesc() for call in calls]
    for _ in range(CALLS):
        for call, document, found in zip(calls, documents, lengths, strict=True):
            command = [str(call.hook), "vm", call.operation, "begin", "-"]
            started = time.monotonic()
            done = subprocess.run(command, input=document, text=True, capture_output=True, check=False)
            found.append((time.monotonic() - started) * 1000)
            assert done.returncode == call.status, done.stderr
    return list(map(median, lengths))


def test_what_a_call_costs(agent: Agent, vms: list[Vm], figures: Record, tmp_path: Path) -> None:
    """Print the times and assert their order. libvirt calls a hook five times for one life of a VM."""
    empty = tmp_path / "empty"
    empty.write_text(EMPTY)
    empty.chmod(0o755)
    plain = made(vms, Vm("plain"))
    vendors = made(vms, Vm("vendors", slices=(str(uuids.uuid4()),)))
    ours = made(vms, Vm.ours("ours", str(uuids.uuid4())))
    nothing = Call("empty", empty, plain)
    up = [
        nothing,
        Call("a VM that is not ours", FRONT, plain),
        Call("a VM of ours", FRONT, ours),
        Call("start and stopped", FRONT, ours, operation="stopped"),
    ]
    down = [
        nothing,
        Call("a VM that is not ours", FRONT, plain),
        Call("a VM with another vendor's device", FRONT, vendors),
        Call("a VM of ours, refused", FRONT, ours, status=1),
    ]
    for agents, calls in (("up", up), ("down", down)):
        if agents == "down":
            agent.stop()
        none, *lengths = median_ms(calls)
        for call, length in zip(calls[1:], lengths, strict=True):
            figures(f"hook for {call.what}, agent {agents}", length, against=none, unit="ms of an empty hook")
        assert none < lengths[0] < lengths[1] / 2, "who has no mediated device does not pay for Python"
