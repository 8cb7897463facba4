# SPDX-License-Identifier: Apache-2.0
"""This lab host with our hook installed in its libvirt, VMs that exist only for it, and an agent that records calls.

The VMs are started paused: the hook never needs a running guest.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid as uuids
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import libvirt

from tests.rig.gpu import poll
from tests.rig.guest import MIGRATABLE, hostdev_xml, start_libvirt

CHECKOUT = Path(__file__).resolve().parents[2]
HOOKS = Path("/etc/libvirt/hooks")
FRONT = HOOKS / "qemu.d/vgpumgr"
CLIENT = Path("/usr/local/lib/vgpumgr/hook_client.py")
SOCKET = Path("/run/vgpumgr/hook.sock")
STATE = Path("/run/hook-agent")
STOP_S = 90  # systemd's TimeoutStopSec
NAMESPACE = "https://vgpumgr.dev/xmlns/domain/1"

_DOMAIN = """
<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <metadata>{metadata}</metadata>
  <memory unit='MiB'>32</memory>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <memballoon model='none'/>
    {devices}
  </devices>
  {override}
</domain>
"""


def install() -> None:
    """Install it the way the role does; the files themselves contain the paths."""
    for source, target in (("vgpumgr", FRONT), ("hook_client.py", CLIENT)):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / "agent/hook" / source, target)
    reload_hooks()


def remove() -> None:
    FRONT.unlink(missing_ok=True)
    CLIENT.unlink(missing_ok=True)
    reload_hooks()


def reload_hooks() -> None:
    """Make libvirtd look for hooks, which it does at its start and on request; return when it has."""
    seen, daemon = STATE / "reloaded", HOOKS / "daemon"
    STATE.mkdir(exist_ok=True)
    HOOKS.mkdir(parents=True, exist_ok=True)
    seen.unlink(missing_ok=True)
    daemon.write_text(f"#!/bin/sh\necho >{seen}\n")
    daemon.chmod(0o755)
    os.kill(libvirtd(), signal.SIGHUP)
    poll(seen.exists)
    daemon.unlink()


def libvirtd() -> int:
    return int(Path("/run/libvirtd.pid").read_text())


def restart_libvirtd() -> None:
    """Restart libvirtd the way systemd does: it is killed if it has not ended in time. Running VMs stay, connections do
    not."""
    pid = libvirtd()
    os.kill(pid, signal.SIGTERM)
    try:
        poll(lambda: not Path(f"/proc/{pid}").exists(), timeout_s=STOP_S)
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        poll(lambda: not Path(f"/proc/{pid}").exists())
    start_libvirt()


def virsh(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command like a user, and return the output."""
    return subprocess.run(
        ["virsh", "-q", "-c", "qemu:///system", *words], capture_output=True, text=True, timeout=120, check=False
    )


@dataclass
class Agent:
    """The agent's process; `stop` is the same as a crash."""

    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        if self.process is not None:
            return
        self.process = subprocess.Popen(
            [sys.executable, str(CHECKOUT / "tests/chain/hook_agent.py"), str(SOCKET), str(STATE)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{CHECKOUT / 'agent'}:{CHECKOUT}"},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "listening\n"

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def refuse(self, code: str, reason: str, *, prepared: Sequence[str] = ()) -> None:
        """Refuse `prepare` unless every device of the VM is one of `prepared`."""
        (STATE / "refuse").write_text("\n".join((code, reason, *prepared)))

    def agree(self) -> None:
        (STATE / "refuse").unlink(missing_ok=True)

    def forget(self) -> None:
        (STATE / "calls").unlink(missing_ok=True)

    def calls(self, vm: "Vm") -> list[tuple[str, str]]:
        """The calls about a VM, each with the VM's name or the reason of its end."""
        with suppress(FileNotFoundError):
            lines = map(json.loads, (STATE / "calls").read_text().splitlines())
            return [(line[0], line[4]) for line in lines if line[1] == vm.uuid]
        return []


@dataclass
class Vm:
    """A defined domain. `metadata`: our metadata element or another; `migratable`: its one slice does not prevent
    migration."""

    name: str
    metadata: str = ""
    slices: tuple[str, ...] = ()
    uuid: str = field(default_factory=lambda: str(uuids.uuid4()))
    migratable: bool = False

    @classmethod
    def ours(cls, name: str, *slices: str) -> "Vm":
        named = "".join(f"<vgpumgr:slice id='{one}'/>" for one in slices)
        return cls(name, f"<vgpumgr:slices xmlns:vgpumgr='{NAMESPACE}'>{named}</vgpumgr:slices>", slices)

    def define(self, connection: libvirt.virConnect) -> None:
        devices = "".join(map(hostdev_xml, self.slices))
        override = MIGRATABLE if self.migratable else ""
        xml = _DOMAIN.format(name=self.name, uuid=self.uuid, metadata=self.metadata, devices=devices, override=override)
        connection.defineXML(xml)

    def domain(self) -> libvirt.virDomain:
        """Over a new connection: a restart of libvirtd breaks older ones."""
        return libvirt.open("qemu:///system").lookupByUUIDString(self.uuid)

    def start(self) -> None:
        """Raises libvirt.libvirtError when libvirt refuses."""
        self.domain().createWithFlags(libvirt.VIR_DOMAIN_START_PAUSED)

    def state(self) -> tuple[int, int]:
        state, reason = self.domain().state()
        return state, reason

    def running(self) -> bool:
        return bool(self.state()[0] == libvirt.VIR_DOMAIN_PAUSED)

    def qemu_pid(self) -> int:
        return int(Path(f"/run/libvirt/qemu/{self.name}.pid").read_text())

    def remove(self) -> None:
        domain = self.domain()
        if domain.isActive():
            domain.destroy()
        domain.undefine()
