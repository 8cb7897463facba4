# SPDX-License-Identifier: Apache-2.0
"""Our hook in a real libvirt: what a user sees of a refusal, and what becomes of VMs while the agent is down."""

import os
import signal
import subprocess
import time
import uuid as uuids
from collections.abc import Iterator
from pathlib import Path

import libvirt
import pytest

from tests.chain.hook_host import (
    FRONT,
    STATE,
    Agent,
    Vm,
    install,
    reload_hooks,
    remove,
    restart_libvirtd,
    virsh,
)
from tests.rig.figures import Record
from tests.rig.gpu import Gpu, poll
from tests.rig.guest import Guests

WHY = "slice 5c1e is not claimed for this VM: claim it with `vgpumgr create slice`"
EMPTY = "#!/bin/sh\nexit 0\n"
CALLS = 30


@pytest.fixture(scope="module")
def installed(libvirt_session: Guests) -> Iterator[Agent]:
    install()
    agent = Agent()
    yield agent
    agent.stop()
    remove()


@pytest.fixture
def agent(installed: Agent, gpu: Gpu) -> Iterator[Agent]:
    """Up, and agrees to everything."""
    installed.agree()
    installed.forget()
    installed.start()
    yield installed
    installed.agree()


@pytest.fixture
def vms(agent: Agent) -> Iterator[list[Vm]]:
    """Those in the list are gone at the end."""
    made: list[Vm] = []
    yield made
    for vm in made:
        vm.remove()


def made(vms: list[Vm], vm: Vm) -> Vm:
    vms.append(vm)
    vm.define()
    return vm


def test_a_refusal_is_the_users_error_and_changes_nothing(agent: Agent, vms: list[Vm]) -> None:
    """As often as it is tried; each time libvirt releases what was never bound."""
    vm = made(vms, Vm.ours("refused", str(uuids.uuid4())))
    agent.refuse("claim.none", WHY)
    for attempt in (1, 2):
        done = vm.start()
        assert done.returncode != 0
        assert f"unexpected exit status 1: {WHY} (vgpumgr: claim.none)" in done.stderr
        assert "Traceback" not in done.stderr
        assert vm.state().startswith("shut off")
        assert agent.calls(vm) == [("prepare", "refused"), ("release", "failed")] * attempt


def test_a_vm_that_is_not_ours_needs_no_agent(agent: Agent, vms: list[Vm]) -> None:
    """Not even one whose XML is larger than the pipe that libvirt hands it over by."""
    agent.stop()
    large = made(vms, Vm("large", f"<x:notes xmlns:x='urn:example'>{'n' * 300_000}</x:notes>"))
    assert large.start().returncode == 0
    assert large.running()
    assert virsh("destroy", "large").returncode == 0


def test_a_vm_of_ours_does_not_start_without_agent(agent: Agent, vms: list[Vm]) -> None:
    agent.stop()
    vm = made(vms, Vm.ours("unasked", str(uuids.uuid4())))
    done = vm.start()
    assert done.returncode != 0
    assert "the agent does not decide about this VM's slices" in done.stderr
    assert "systemctl status vgpumgr-agent" in done.stderr


def test_running_vms_survive_a_restart_of_libvirtd(
    agent: Agent, vms: list[Vm], gpu: Gpu, libvirt_session: Guests
) -> None:
    """With the agent down, and with one that refuses; libvirt would kill them for a hook that fails."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    vm = made(vms, Vm.ours("survivor", gpu.slice("blue")))
    assert vm.start().returncode == 0, "the VM itself does not start"
    pid = vm.qemu_pid()
    assert agent.calls(vm) == [("prepare", "survivor"), ("started", "survivor")]
    agent.stop()
    try:
        restart_libvirtd()
        assert vm.running()
        agent.refuse("claim.none", WHY)
        agent.start()
        restart_libvirtd()
        assert vm.running()
        # told to the agent once it was there
        poll(lambda: agent.calls(vm)[2:] == [("started", "survivor")])
    finally:
        libvirt_session.connection = libvirt.open("qemu:///system")
    assert vm.qemu_pid() == pid
    assert Path(f"/proc/{pid}").exists()


def test_the_agent_learns_how_a_vm_ended(agent: Agent, vms: list[Vm], gpu: Gpu) -> None:
    """kill -9 of QEMU, and being destroyed; the same VM starts again."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    vm = made(vms, Vm.ours("killed", gpu.slice("blue")))
    assert vm.start().returncode == 0
    agent.forget()
    os.kill(vm.qemu_pid(), signal.SIGKILL)
    poll(lambda: agent.calls(vm) == [("release", "crashed")])
    assert vm.state() == "shut off (crashed)"

    assert vm.start().returncode == 0
    agent.forget()
    assert virsh("destroy", vm.name).returncode == 0
    assert agent.calls(vm) == [("release", "destroyed")]


def test_saving_and_restoring(agent: Agent, vms: list[Vm]) -> None:
    """`restore` may be refused, and leaves the domain as it was: libvirt takes what a hook prints for its XML."""
    vm = made(vms, Vm.ours("saved"))
    assert vm.start().returncode == 0
    before = virsh("metadata", vm.name, "https://vgpumgr.dev/xmlns/domain/1").stdout
    assert "slices" in before
    agent.forget()
    image = STATE / "saved.image"
    done = virsh("save", vm.name, str(image))
    assert done.returncode == 0, done.stderr
    assert agent.calls(vm) == [("release", "saved")]

    agent.refuse("claim.none", WHY)
    done = virsh("restore", str(image), "--paused")
    assert done.returncode != 0
    assert f"{WHY} (vgpumgr: claim.none)" in done.stderr
    agent.agree()
    agent.forget()
    done = virsh("restore", str(image), "--paused")
    assert done.returncode == 0, done.stderr
    # at `restore`, at `prepare`, at `started`
    assert agent.calls(vm) == [("prepare", "saved"), ("prepare", "saved"), ("started", "saved")]
    assert virsh("metadata", vm.name, "https://vgpumgr.dev/xmlns/domain/1").stdout == before


def mean_ms(command: list[str], xml: str) -> float:
    started = time.monotonic()
    for _ in range(CALLS):
        subprocess.run(command, input=xml, text=True, check=True, stdout=subprocess.DEVNULL)
    return (time.monotonic() - started) * 1000 / CALLS


def test_what_a_call_costs(agent: Agent, vms: list[Vm], figures: Record, tmp_path: Path) -> None:
    """Printed, not asserted: libvirt calls a hook five times for one life of a VM."""
    empty = tmp_path / "empty"
    empty.write_text(EMPTY)
    empty.chmod(0o755)
    other = made(vms, Vm("other"))
    ours = made(vms, Vm.ours("ours", str(uuids.uuid4())))
    arguments = ["vm", "prepare", "begin", "-"]
    nothing = mean_ms([str(empty), *arguments], virsh("dumpxml", other.name).stdout)
    for vm, what in ((other, "a VM that is not ours"), (ours, "a VM of ours, the agent up")):
        mean = mean_ms([str(FRONT), *arguments], virsh("dumpxml", vm.name).stdout)
        figures(f"hook call for {what}", mean, against=nothing, unit="ms of an empty hook")
    silent = mean_ms([str(FRONT), "vm", "stopped", "end", "-"], virsh("dumpxml", ours.name).stdout)
    figures("hook call at start and stopped", silent, against=nothing, unit="ms of an empty hook")


def test_what_a_start_costs(agent: Agent, vms: list[Vm], figures: Record) -> None:
    """One life of a VM that is not ours, start to destroyed, the agent down: our hook beside an empty one."""
    agent.stop()
    vm = made(vms, Vm("timed"))
    ours = FRONT.read_text()
    means = []
    try:
        for text in (EMPTY, ours):
            FRONT.write_text(text)
            reload_hooks()
            started = time.monotonic()
            for _ in range(2):
                assert vm.start().returncode == 0
                assert virsh("destroy", vm.name).returncode == 0
            means.append((time.monotonic() - started) * 1000 / 2)
    finally:
        FRONT.write_text(ours)
    figures("start and destroy of a VM that is not ours", means[1], against=means[0], unit="ms with an empty hook")
