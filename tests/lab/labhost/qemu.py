# SPDX-License-Identifier: Apache-2.0
"""The QEMU command line, the kind of emulation, and the machine of a lab host."""

import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labhost.command import spawn
from labhost.paths import Paths
from labhost.progress import say
from labhost.toolchain import Toolchain

_PROBE_LIMIT_S = 15.0
_PROBE_MARK = b"lab: probe ok"
_EMULATED_CPU = "max,-la57,-erms,-fsrm,-fsrs"
"""With `erms` and similar features the kernel copies and clears memory by `rep movsb` and `rep stosb`, which are
emulated byte by byte; without them it handles 8 bytes at a time. With `la57` page tables have one level more, and walks
take longer.
"""


@dataclass(frozen=True, kw_only=True)
class Emulation:
    """The kind of CPUs that the lab host has."""

    kvm: bool
    icount: bool
    cpus: int

    def arguments(self) -> list[str]:
        """Options for QEMU. With icount time is virtual: it depends on instructions, not on this machine's load.

        With icount each byte of a `rep movsb` or `rep stosb` counts as an instruction. A kernel that uses them clears 1
        GB/s, a tenth of the speed of real machines, and keeps the processor for 0.4 ms at a time.
        """
        if self.icount:
            return [
                "-accel", "tcg,thread=single,tb-size=512", "-icount", "shift=0,sleep=off",
                "-cpu", _EMULATED_CPU, "-smp", "1",
            ]  # fmt: skip
        if self.kvm:
            return ["-accel", "kvm", "-cpu", "host", "-smp", str(self.cpus)]
        return ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", _EMULATED_CPU, "-smp", str(self.cpus)]


@dataclass(frozen=True, kw_only=True)
class Wire:
    """One end of the network link between two lab hosts; each end knows the other's socket. `number`: of the host, 1 or
    2."""

    directory: Path
    number: int

    def arguments(self) -> list[str]:
        """Options for QEMU. Neither host waits for the other: packets sent before the other host exists are lost."""
        here, there = (_escape(self.directory / f"wire-{number}") for number in (self.number, 3 - self.number))
        ends = f"local.type=unix,local.path={here},remote.type=unix,remote.path={there}"
        return [
            "-netdev", f"dgram,id=wire,{ends}",
            "-device", f"virtio-net-pci,netdev=wire,mac=52:54:00:00:00:0{self.number}",
        ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One lab host, before it is started."""

    emulation: Emulation
    memory_mib: int
    kernel: Path
    initrd: Path
    command_line: str
    serial_log: Path
    reset_log: Path
    report: Path
    checkout: Path
    root_image: Path | None = None
    modules_image: Path | None = None
    compute_image: Path | None = None
    ssh_port: int | None = None
    wire: Wire | None = None
    reboots: bool = False

    def arguments(self) -> list[str]:
        """Options for QEMU. QEMU's stdout has COMMAND's output."""
        options = [
            "-nodefaults", "-no-user-config", "-display", "none",
            *([] if self.reboots else ["-no-reboot"]),
            "-machine", "q35,sata=off,smbus=off",
            *self.emulation.arguments(),
            "-m", str(self.memory_mib),
            "-kernel", str(self.kernel), "-initrd", str(self.initrd), "-append", self.command_line,
            "-serial", f"file:{_escape(self.serial_log)}",
            # the processors' registers at each reset, and whether a triple fault was the cause
            "-d", "cpu_reset", "-D", str(self.reset_log),
            "-device", "edu,addr=0x10",
            "-device", "virtio-serial-pci",
            # not `stdio`: once our stdin is at its end, its port counts as unplugged, and writes block
            "-chardev", "file,id=output,path=/dev/stdout",
            "-device", "virtserialport,chardev=output,name=lab.output",
            "-chardev", f"file,id=report,path={_escape(self.report)}",
            "-device", "virtserialport,chardev=report,name=lab.report",
            "-fsdev", f"local,id=checkout,path={_escape(self.checkout)},security_model=none,multidevs=remap",
            "-device", "virtio-9p-pci,fsdev=checkout,mount_tag=checkout",
        ]  # fmt: skip
        if self.root_image:
            options += _disk("root", self.root_image, "snapshot=on")
        if self.modules_image:
            options += _disk("modules", self.modules_image, "readonly=on")
        if self.compute_image:
            options += _disk("compute", self.compute_image, "readonly=on")
        if self.ssh_port is not None:
            # restrict=on: the lab host reaches nothing outside; the forwarded port still works
            user = f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{self.ssh_port}-:22"
            options += ["-netdev", user, "-device", "virtio-net-pci,netdev=net"]
        if self.wire:
            options += self.wire.arguments()
        return options


def _disk(name: str, image: Path, mode: str) -> list[str]:
    drive = f"if=none,id={name},file={_escape(image)},format=raw,{mode}"
    return ["-drive", drive, "-device", f"virtio-blk-pci,drive={name},serial={name}"]


def _escape(path: Path) -> str:
    """A comma ends a value in QEMU's option lists unless it is doubled."""
    return str(path).replace(",", ",,")


def command(root: Path) -> list[str]:
    """The command of the QEMU in a root file system, run with that system's own libc, without chroot.

    This machine's own QEMU is never used: unpatched ones let the guests of an emulated host hang, or reset the host
    (labhost/mending.py).
    """
    return [
        str(root / "usr/lib64/ld-linux-x86-64.so.2"),
        "--library-path", str(root / "usr/lib/x86_64-linux-gnu"),
        str(root / "usr/bin/qemu-system-x86_64"),
        "-L", str(root / "usr/share/qemu"), "-L", str(root / "usr/share/seabios"),
        "-L", str(root / "usr/lib/ipxe/qemu"),
    ]  # fmt: skip


def kvm_usable(paths: Paths, qemu: Sequence[str], toolchain: Toolchain, initrd: Path) -> bool:
    """Whether a kernel really boots under KVM here; tried once per boot of this machine.

    A /dev/kvm that can be opened proves nothing: under some nested hypervisors the kernel's decompressor crashes. KVM
    is never used on a machine that is itself virtual, where guests in the lab host would run under three nested
    hypervisors. One such machine booted the lab host, but the lab host died silently when its guests ran.
    """
    if not _kvm_possible():
        return False
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    answer = paths.cache / f"kvm-{boot_id}"
    if answer.is_file():
        return answer.read_text(encoding="ascii") == "yes"
    say("trying whether KVM boots a kernel here ...")
    usable = probe_kvm(qemu, toolchain.vmlinuz, initrd)
    say("KVM works" if usable else "KVM does not work here: the lab emulates (TCG)")
    for old in paths.cache.glob("kvm-*"):
        if old != answer:  # another run may have written it meanwhile
            old.unlink(missing_ok=True)
    partial = answer.with_name(f"partial-{answer.name}-{os.getpid()}")
    partial.write_text("yes" if usable else "no", encoding="ascii")
    partial.replace(answer)
    return usable


def _kvm_possible() -> bool:
    return platform.machine() == "x86_64" and Path("/dev/kvm").exists() and not is_virtual(Path("/proc/cpuinfo"))


def is_virtual(cpuinfo: Path) -> bool:
    """Whether this machine runs under a hypervisor, according to the processor flag."""
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(encoding="ascii"), re.M)
    return flags is not None and "hypervisor" in flags[1].split()


def probe_kvm(qemu: Sequence[str], vmlinuz: Path, initrd: Path, limit_s: float = _PROBE_LIMIT_S) -> bool:
    """Boot a kernel under KVM; False if it does not report in time for any reason."""
    with tempfile.TemporaryDirectory(prefix="lab-kvm-") as directory:
        serial = Path(directory) / "serial"
        command = [
            *qemu, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35",
            "-accel", "kvm", "-cpu", "host", "-m", "512", "-serial", f"file:{serial}",
            "-kernel", str(vmlinuz), "-initrd", str(initrd),
            "-append", "console=ttyS0 quiet panic=-1 lab.mode=probe",
        ]  # fmt: skip
        child = spawn(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            child.kill()
            child.wait()
        return serial.is_file() and _PROBE_MARK in serial.read_bytes()
