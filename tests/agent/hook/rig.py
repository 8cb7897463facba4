# SPDX-License-Identifier: Apache-2.0
"""A host for the hook: both halves are installed below a directory, and the test sets what the agent answers."""

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from uuid import UUID

from vgpumgr_agent.refused import Refused

HOOK = Path("agent/hook").resolve()
NAMESPACE = "https://vgpumgr.dev/xmlns/domain/1"
VM = "0b5d7a5e-5d6a-4f0e-9c55-2d2f6c1e7a01"
SLICE = "5c1e0000-0000-4000-8000-00000000000a"
OTHER = "5c1e0000-0000-4000-8000-00000000000b"

VETO = ("prepare", "migrate", "restore")
TOLD = ("started", "release", "reconnect", "attach")
SILENT = ("start", "stopped")

_CLIENT = """\
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("hook_client", {client!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
vars(module).update({settings!r})
os._exit(module.main(sys.argv[1:], root={root!r}))
"""


def load_client() -> ModuleType:
    """The second half of the hook as a module, for tests that call its functions."""
    spec = importlib.util.spec_from_file_location("hook_client", HOOK / "hook_client.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hostdev(uuid: str = SLICE) -> str:
    return (
        "<hostdev mode='subsystem' type='mdev' model='vfio-pci' managed='no'>"
        f"<source><address uuid='{uuid}'/></source></hostdev>"
    )


def function(address: str = "0000:3b:00.4", *, kind: str = "hostdev") -> str:
    """A device element that gives a VM a PCI function of the host, in libvirt's form."""
    domain, bus, rest = address.split(":")
    slot, number = rest.split(".")
    source = f"<address domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{number}'/>"
    if kind == "hostdev":
        return f"<hostdev mode='subsystem' type='pci' managed='yes'><source>{source}</source></hostdev>"
    if kind == "interface":
        return f"<interface type='hostdev' managed='yes'><source>{source}</source></interface>"
    return f"<disk type='nvme' device='disk'><source type='pci' namespace='1'>{source}</source></disk>"


def metadata(*ids: str) -> str:
    slices = "".join(f"<vgpumgr:slice id='{one}'/>" for one in ids)
    return f"<vgpumgr:slices xmlns:vgpumgr='{NAMESPACE}'>{slices}</vgpumgr:slices>"


def domain(devices: str = "", meta: str = "", uuid: str = VM) -> str:
    """A domain in libvirt's form, with the parts that the hook reads."""
    return (
        f"<domain type='kvm' id='1'>\n  <name>guest</name>\n  <uuid>{uuid}</uuid>\n  <metadata>{meta}</metadata>\n"
        f"  <devices>\n    <emulator>/usr/bin/qemu-system-x86_64</emulator>\n{devices}\n  </devices>\n</domain>\n"
    )


@dataclass
class FakeService:
    """Records its requests. `refusal`: raised by prepare and hotplug; `hold`: an event that both wait for."""

    calls: list[dict[str, object]] = field(default_factory=list)
    refusal: Exception | None = None
    hold: threading.Event | None = None

    def _called(self, name: str, **members: object) -> None:
        self.calls.append({"call": name, **members})
        if self.hold is not None:
            self.hold.wait(30)
        if self.refusal is not None:
            raise self.refusal

    def refuse(self, code: str, reason: str) -> None:
        self.refusal = Refused(code, reason)

    def prepare(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        self._called("prepare", vm_uuid=vm_uuid, devices=devices, metadata=metadata, domain=domain)

    def started(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        self._called("started", vm_uuid=vm_uuid, devices=devices, metadata=metadata, domain=domain)

    def release(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], reason: str) -> None:
        self._called("release", vm_uuid=vm_uuid, devices=devices, metadata=metadata, reason=reason)

    def hotplug(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        self._called("hotplug", vm_uuid=vm_uuid, devices=devices, metadata=metadata, domain=domain)

    def unplug(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        self._called("unplug", vm_uuid=vm_uuid, devices=devices, metadata=metadata, domain=domain)


@dataclass
class Host:
    """The hook, installed on a fake root."""

    root: Path

    @property
    def socket(self) -> Path:
        return self.root / "run/vgpumgr/hook.sock"

    @property
    def front(self) -> Path:
        return self.root / "hook"

    def install(self, *, python: str = sys.executable, **settings: float) -> None:
        """Install the hook. `settings` replace constants of the client."""
        for place in (self.socket.parent, self.root / "var/lib/vgpumgr/slices", self.root / "sys/bus/mdev/devices"):
            place.mkdir(parents=True, exist_ok=True)
        client = self.root / "client.py"
        client.write_text(_CLIENT.format(client=str(HOOK / "hook_client.py"), settings=settings, root=str(self.root)))
        text = (HOOK / "vgpumgr").read_text()
        for line, value in (
            ("PYTHON=/usr/bin/python3", python),
            ("CLIENT=/usr/local/lib/vgpumgr/hook_client.py", client),
        ):
            assert text.count(f"\n{line}\n") == 1
            text = text.replace(f"\n{line}\n", f"\n{line.split('=')[0]}={value}\n")
        self.front.write_text(text)
        self.front.chmod(0o755)

    def record(self, uuid: str = SLICE) -> None:
        """Write the record that the helper leaves after it created this device."""
        (self.root / f"var/lib/vgpumgr/slices/{uuid}.json").write_text("{}")

    def mdev(self, uuid: str, *, driver: str) -> None:
        """Create a mediated device below a function that has this driver."""
        function = self.root / "sys/devices/pci0000:00/0000:00:10.0"
        (function / uuid).mkdir(parents=True)
        drivers = self.root / f"sys/bus/pci/drivers/{driver}"
        drivers.mkdir(parents=True)
        (function / "driver").symlink_to(drivers)
        (self.root / f"sys/bus/mdev/devices/{uuid}").symlink_to(function / uuid)

    def function(self, address: str, *, driver: str, of: str = "", shared: bool = False) -> None:
        """Create a PCI function. `of`: its physical function, if it is virtual; `shared`: our module has adopted it."""
        directory = self.root / "sys/bus/pci/devices" / address
        directory.mkdir(parents=True)
        drivers = self.root / f"sys/bus/pci/drivers/{driver}"
        drivers.mkdir(parents=True, exist_ok=True)
        (directory / "driver").symlink_to(drivers)
        if of:
            (directory / "physfn").symlink_to(f"../{of}")
        if shared:
            (directory / "vgpu").mkdir()

    def configure(self, name: str, text: str) -> None:
        """Write a file of /etc/vgpumgr."""
        (self.root / "etc/vgpumgr").mkdir(parents=True, exist_ok=True)
        (self.root / "etc/vgpumgr" / name).write_text(text)

    def call(
        self, operation: str, xml: str | bytes, *, reason: str = "-", name: str = "guest", limit_s: float = 60
    ) -> tuple[int, str]:
        """Call the hook once like libvirt; return exit status and standard error. Standard output must always stay
        empty.
        """
        phase = "end" if operation in ("stopped", "release") else "begin"
        done = subprocess.run(
            [str(self.front), name, operation, phase, reason],
            input=xml.encode() if isinstance(xml, str) else xml,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
        assert done.stdout == b""
        return done.returncode, done.stderr.decode()
