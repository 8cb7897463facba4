# SPDX-License-Identifier: Apache-2.0
"""Real guests: libvirt domains with a slice attached, whose console output is their report.

A guest belongs to the `Guests` that started it and is destroyed with it.
"""

import base64
import gzip
import re
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import libvirt

# On disk, so that a VM that starts with the host finds it.
CONSOLES = Path("/var/log/vgpu-consoles")
KERNEL = Path("/lab/guest/kernel")
INITRD = Path("/lab/guest/initrd")

# no_timer_check: a kernel that does not know that it is a guest panics if its first timer interrupts are late.
_DOMAIN = """
<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <metadata>{metadata}</metadata>
  <memory unit='MiB'>{memory_mib}</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>{kernel}</kernel>
    <initrd>{initrd}</initrd>
    <cmdline>console=ttyS0 quiet panic=-1 no_timer_check vgpu.run={run} {keep}</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='host-passthrough' check='none'/>
  <on_poweroff>destroy</on_poweroff>
  <on_crash>destroy</on_crash>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <serial type='file'><source path='{console}'/></serial>
    <memballoon model='none'/>
    {slices}
  </devices>
  {override}
</domain>
"""

# By default QEMU does not migrate a device whose dirty pages only type 1 tracks.
MIGRATABLE = """
<qemu:override>
  <qemu:device alias='hostdev0'>
    <qemu:frontend><qemu:property name='enable-migration' type='string' value='on'/></qemu:frontend>
  </qemu:device>
</qemu:override>
"""

# QEMU ends a migration when it expects the rest, which includes all of device memory, to take no longer than this. It
# estimates the speed from the last 0.1 s, so a migration that sent nothing in that time never ends. A move gets the
# speed _SWITCHOVER_MIB_S instead.
_DOWNTIME_MS = 120_000
_SWITCHOVER_MIB_S = 256

_HOSTDEV = """
<hostdev mode='subsystem' type='mdev' model='vfio-pci' managed='no'>
  <source><address uuid='{slice_uuid}'/></source>
</hostdev>
"""


def hostdev_xml(slice_uuid: str) -> str:
    """Device element by which libvirt attaches a slice to a domain."""
    return _HOSTDEV.format(slice_uuid=slice_uuid)


@dataclass
class Guest:
    """One running VM. Not for use by several threads. `before`: what it has printed on an earlier console."""

    name: str
    domain: libvirt.virDomain
    console_path: Path
    before: str = ""

    @property
    def vm_uuid(self) -> str:
        return str(self.domain.UUIDString())

    def start(self, *, paused: bool = False) -> None:
        """Start a defined domain; raises libvirt.libvirtError when libvirt or its hook refuses.

        It gets a new file for its console: libvirt once refused the file of a VM whose VMM had been killed as still in
        use.
        """
        self.console_path.unlink(missing_ok=True)
        self.domain.createWithFlags(libvirt.VIR_DOMAIN_START_PAUSED if paused else 0)

    def console(self) -> str:
        """Everything the guest has printed so far."""
        try:
            return self.before + self.console_path.read_text(errors="replace")
        except FileNotFoundError:
            return self.before

    def wait_for(self, pattern: str, *, timeout_s: float) -> re.Match[str]:
        """Wait until the console matches. TimeoutError shows the console's end, and comes at once if the guest is
        gone."""
        deadline = time.monotonic() + timeout_s
        while True:
            running = self.running()
            if match := re.search(pattern, self.console(), re.MULTILINE):
                return match
            if not running or time.monotonic() > deadline:
                reason = "never came" if running else "did not come before the guest ended"
                raise TimeoutError(f"{self.name}: {pattern!r} {reason}:\n{self.console()[-2000:]}")
            time.sleep(0.1)

    def running(self) -> bool:
        try:
            return bool(self.domain.isActive())
        except libvirt.libvirtError:
            return False

    def qemu_pid(self) -> int:
        """The PID of the VMM."""
        return int(Path(f"/run/libvirt/qemu/{self.name}.pid").read_text())

    def attach(self, slice_uuid: str) -> None:
        """Hot-plug a slice; raises libvirt.libvirtError when it is refused."""
        self.domain.attachDeviceFlags(hostdev_xml(slice_uuid), libvirt.VIR_DOMAIN_AFFECT_LIVE)

    def save(self, image: Path) -> None:
        """Save the running VM to a file and end it. If that fails, raises libvirt.libvirtError, and the VM goes on."""
        self.domain.migrateSetMaxDowntime(_DOWNTIME_MS)
        self.domain.save(str(image))

    def restore(self, image: Path) -> None:
        """Restore it from the file. Its console no longer has what it printed before."""
        connection = self.domain.connect()
        connection.restore(str(image))
        self.domain = connection.lookupByName(self.name)

    def move(
        self,
        there: libvirt.virConnect,
        *,
        slices: Mapping[str, str],
        address: str = "127.0.0.1",
        never: bool = False,
    ) -> "Guest":
        """Migrate it live to another libvirt, with other slices instead of its own; returns the VM there.

        If that fails, raises libvirt.libvirtError, and the VM goes on here. With `never` the migration does not end
        before it is cancelled. `address`: of the other host; the VM's output there is seen only if that is this host.
        """
        console = _console(f"{self.name}-moved")
        console.unlink(missing_ok=True)
        xml = self.domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE | libvirt.VIR_DOMAIN_XML_SECURE)
        for old, new in {**slices, str(self.console_path): str(console)}.items():
            xml = xml.replace(old, new)
        self.domain.migrateSetMaxDowntime(1 if never else _DOWNTIME_MS)
        parameters: dict[str, str | int] = {
            libvirt.VIR_MIGRATE_PARAM_DEST_XML: xml,
            libvirt.VIR_MIGRATE_PARAM_URI: f"tcp://{address}",
        }
        if never:
            parameters[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH] = 1  # MiB/s
        else:
            parameters[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH_AVAIL_SWITCHOVER] = _SWITCHOVER_MIB_S
        moved = self.domain.migrate3(there, parameters, libvirt.VIR_MIGRATE_LIVE)
        return Guest(self.name, moved, console, before=self.console())

    def destroy(self) -> None:
        """Destroy it; harmless when it is gone."""
        try:
            self.domain.destroy()
        except libvirt.libvirtError as error:
            if error.get_error_code() not in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID):
                raise


@dataclass
class Guests:
    """Starts guests on the lab host's libvirt, destroys all of them at the end."""

    connection: libvirt.virConnect
    started: list[Guest] = field(default_factory=list)
    defined: list[Guest] = field(default_factory=list)

    def destroy(self) -> None:
        for guest in self.started:
            guest.destroy()
        for guest in self.defined:
            guest.destroy()
            guest.domain.undefine()

    def start(
        self,
        name: str,
        *,
        slices: tuple[str, ...],
        command: str,
        memory_mib: int = 96,
        keep: bool = False,
        migratable: bool = False,
    ) -> Guest:
        """Boot a guest that runs the shell `command` with the guest driver loaded, then powers off unless `keep`.

        With `migratable` the guest, which has one slice, can be saved and moved.
        Raises libvirt.libvirtError when libvirt refuses, for example because the kernel refuses a slice.
        """
        CONSOLES.mkdir(exist_ok=True)
        console = _console(name)
        console.unlink(missing_ok=True)
        xml = _domain_xml(
            name,
            str(uuid.uuid4()),
            command,
            slices=slices,
            memory_mib=memory_mib,
            keep=keep,
            override=MIGRATABLE if migratable else "",
        )
        guest = Guest(name, self.connection.createXML(xml), console)
        self.started.append(guest)
        return guest

    def define(
        self,
        name: str,
        *,
        vm_uuid: str,
        command: str,
        slices: tuple[str, ...] = (),
        metadata: str = "",
        memory_mib: int = 96,
        keep: bool = False,
    ) -> Guest:
        """Define a persistent domain, not started; `metadata`: XML inside its metadata element."""
        CONSOLES.mkdir(exist_ok=True)
        xml = _domain_xml(name, vm_uuid, command, slices=slices, memory_mib=memory_mib, keep=keep, metadata=metadata)
        guest = Guest(name, self.connection.defineXML(xml), _console(name))
        self.defined.append(guest)
        return guest

    def defined_before(self, name: str) -> Guest:
        """A domain that existed before this process; raises libvirt.libvirtError."""
        return Guest(name, self.connection.lookupByName(name), _console(name))


def _console(name: str) -> Path:
    return CONSOLES / f"{name}.log"


def _domain_xml(
    name: str,
    vm_uuid: str,
    command: str,
    *,
    slices: tuple[str, ...],
    memory_mib: int,
    keep: bool,
    metadata: str = "",
    override: str = "",
) -> str:
    return _DOMAIN.format(
        name=name,
        uuid=vm_uuid,
        metadata=metadata,
        memory_mib=memory_mib,
        kernel=KERNEL,
        initrd=INITRD,
        run=_packed(command),
        keep="vgpu.keep=1" if keep else "",
        console=_console(name),
        slices="".join(hostdev_xml(slice_uuid) for slice_uuid in slices),
        override=override,
    )


def _packed(command: str) -> str:
    """Pack a command for guest-init. A kernel takes 2047 bytes of arguments, and stops silently if it gets
    more."""
    packed = base64.b64encode(gzip.compress(command.encode())).decode()
    assert len(packed) < 1900, "too long a command"
    return packed


def start_libvirt(*options: str) -> None:
    """Start libvirtd in this lab host, with options, unless it runs, and wait until it answers."""
    subprocess.run(["lab-libvirt", *options], check=True, timeout=120)


@contextmanager
def libvirt_guests(*, keep: bool = False) -> Iterator[Guests]:
    """Start libvirt in this lab host unless it runs, and yield a `Guests`, which starts guests; `keep` leaves them
    running."""
    start_libvirt()
    libvirt.registerErrorHandler(lambda _context, _error: None, None)
    connection = libvirt.open("qemu:///system")
    try:
        guests = Guests(connection)
        try:
            yield guests
        finally:
            if not keep:
                guests.destroy()
    finally:
        connection.close()
