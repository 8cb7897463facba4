# SPDX-License-Identifier: Apache-2.0
"""Command line of the lab."""

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from labhost import persistent
from labhost.artefacts import SOURCES
from labhost.build import build
from labhost.errors import EXIT_LAB_FAILED, LabError
from labhost.paths import Paths
from labhost.progress import say
from labhost.rootfs import in_root
from labhost.run import Options, run
from labhost.snapshot import Snapshot
from labhost.toolchain import DEFAULT_KERNEL, KERNELS, toolchain

_DESCRIPTION = """\
Boots throw-away lab hosts: Debian virtual machines with libvirt, QEMU, our kernel module and an `edu` PCI device,
on a machine that needs neither a GPU nor KVM. COMMAND runs as root in /checkout, this source tree, writable.
"""

_EPILOG = """\
examples:
  lab run -- python3 -m pytest -q tests/kmod   a fresh lab host with libvirt, QEMU and udev
  lab run -- 'lab-libvirt && virsh list'       one word is a shell command line
  lab run --minimal -- 'lab-insmod && ls /sys/class/mdev_bus'       seconds; busybox only
  lab run --icount -- python3 -m pytest -q tests/time       virtual time: results do not depend on this machine's load
  lab run -- 'lab-product && vgpumgr get gpus' the deployed product
  lab run --compute -- /usr/lib/vgpumgr/mandelbrot --frames 8    OpenCL on PoCL; guests have OpenCL, too
  lab run --kernel uml --bare -- python3 -m pytest -q tests/kmod    User-mode Linux: the module alone
  lab run --systemd -- systemctl --failed      a lab host that systemd has booted
  lab run --systemd --reboots -- 'echo $LAB_BOOT; [ $LAB_BOOT = 2 ] || lab-reboot'         a reboot
  lab run --neighbour COMMAND-THERE -- COMMAND  two lab hosts on one wire, 192.0.2.1 (COMMAND's) and 192.0.2.2
  lab up; lab shell -- uname -r; lab down      one that stays
  lab toolchain --kernel 6.1 -- make -C kmod KDIR='$KDIR' W=1 modules      in a copy of kmod/

in a lab host:
  /lab/vgpumgr.ko, /lab/vgpu_guest.ko          our modules; `lab-insmod [PARAMETER=VALUE...]` loads the first
  /lab/bin (on PATH)                           vgpu-guest, vgpu-client, vgpu-exercise: static programs
  /lab/guest/kernel, /lab/guest/initrd         to start guests with; kernel command line: console=ttyS0
                                               vgpu.run=SHELL-COMMAND, by gzip and base64 [vgpu.keep=1]
  /usr/lib/vgpumgr                             with --compute: programs of compute/ and of tests/chain/programs
  lab-product                                  starts what our ansible roles installed: API, agent, helper, hook;
                                               returns when the host is enrolled and online with its GPU
  lab-reboot [--hard]                          with --reboots: COMMAND runs again, $LAB_BOOT counts; the disk stays
  lab-libvirt                                  starts libvirtd and loads KVM (guests: type='kvm', also when emulated)
  0000:00:10.0                                 the `edu` PCI device

exit status of run: that of COMMAND, or of its neighbour's if that is 0; 70 the kernel complained; 124 time limit;
125 the lab itself failed.
Logs of runs that failed are kept in build/lab/runs. The cache is $VGPUMGR_CACHE, else ~/.cache/vgpumgr.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; return its exit status."""
    options = _parser().parse_args(arguments)
    paths = Paths.find()
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGHUP, _end)
    try:
        status: int = _COMMANDS[options.subcommand](paths, options)
    except LabError as error:
        say(str(error))
        return EXIT_LAB_FAILED
    except (KeyboardInterrupt, BrokenPipeError):
        return 128 + signal.SIGINT
    return status


def _end(number: int, _: FrameType | None) -> NoReturn:
    """End with an exception, so that the files and processes of a run are cleaned up."""
    sys.exit(128 + number)


def _build(paths: Paths, options: argparse.Namespace) -> int:
    build(paths, options.what, kernels=options.kernel, refresh=options.refresh)
    say(f"built: {options.what}")
    return 0


def _run(paths: Paths, options: argparse.Namespace) -> int:
    return run(paths, _boot_options(options), options.command)


def _up(paths: Paths, options: argparse.Namespace) -> int:
    persistent.up(paths, _boot_options(options))
    return 0


def _down(paths: Paths, _: argparse.Namespace) -> int:
    persistent.down(paths)
    return 0


def _shell(paths: Paths, options: argparse.Namespace) -> int:
    return persistent.shell(paths, options.command)


def _status(paths: Paths, _: argparse.Namespace) -> int:
    print(persistent.describe(paths))
    for place in (
        "host-root",
        "host-system",
        "host-module",
        "host",
        "qemu",
        *(f"toolchain-{kernel}" for kernel in KERNELS),
    ):
        entries = [entry.name for entry in (paths.cache / place).glob("[!.]*")]
        print(f"{place}: {', '.join(sorted(entries)) or 'not built'}")
    print(f"cache: {paths.cache}")
    return 0


def _toolchain(paths: Paths, options: argparse.Namespace) -> int:
    chain = toolchain(paths, KERNELS[options.kernel])
    with tempfile.TemporaryDirectory(prefix="lab-source-") as directory:
        Snapshot.take(paths.checkout, SOURCES).write(Path(directory))
        words = [word.replace("$KDIR", chain.headers) for word in options.command]
        command = ["sh", "-c", words[0]] if len(words) == 1 else words
        return subprocess.call([str(word) for word in in_root(chain.root, Path(directory), command)])


_COMMANDS = {
    "build": _build,
    "run": _run,
    "up": _up,
    "down": _down,
    "shell": _shell,
    "status": _status,
    "toolchain": _toolchain,
}


def _boot_options(options: argparse.Namespace) -> Options:
    environ = {}
    for setting in options.env:
        name, separator, value = setting.partition("=")
        if not separator or not name.isidentifier():
            raise LabError(f"--env {setting}: want NAME=VALUE")
        environ[name] = value
    if options.minimal + options.bare + options.systemd > 1:
        raise LabError("--minimal, --bare and --systemd exclude each other")
    if options.reboots and not options.systemd:
        raise LabError("--reboots goes with --systemd: the other lab hosts keep nothing that outlives a reboot")
    user_mode = KERNELS[options.kernel].is_user_mode
    if user_mode and (not (options.minimal or options.bare) or options.icount):
        raise LabError(f"--kernel {options.kernel} goes with --minimal or --bare, and not with --icount")
    if options.virtual_time and (not user_mode or KERNELS[options.kernel].multiprocessor):
        raise LabError("--virtual-time goes with --kernel uml and one processor; --icount is QEMU's")
    if options.compute and (options.minimal or user_mode):
        raise LabError("--compute goes with a lab host that has a root disk: not with --minimal, nor with --kernel uml")
    neighbour = getattr(options, "neighbour", None)
    if neighbour and (options.systemd or options.icount or user_mode):
        raise LabError(
            "--neighbour does not go with --systemd, --kernel uml or --icount: nothing may wait for the outside then"
        )
    return Options(
        kernel=options.kernel,
        guest_kernel=options.guest_kernel,
        minimal=options.minimal,
        bare=options.bare,
        systemd=options.systemd,
        icount=options.icount,
        virtual_time=options.virtual_time,
        accelerator=options.accel,
        cpus=options.smp,
        memory_mib=options.memory,
        timeout_s=options.timeout,
        allow_splats=options.allow_splats,
        artefacts=not options.no_artefacts,
        compute=options.compute,
        reboots=options.reboots,
        neighbour=neighbour,
        environ=environ,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lab",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")

    builder = commands.add_parser("build", help="build what boots need, as far as it is not cached (needs root)")
    whats = ("host", "modules", "all", "compute", "selftests", "checkpatch", "sparse")
    builder.add_argument("--what", choices=whats, default="all", help="default: all")
    builder.add_argument(
        "--kernel",
        choices=sorted(KERNELS),
        action="append",
        default=[],
        help="default: each of Debian's; for sparse 6.12",
    )
    builder.add_argument("--refresh", action="store_true", help="make the Debian systems anew, with current packages")

    runner = commands.add_parser("run", help="run COMMAND in a fresh lab host and return its exit status")
    _add_boot_options(runner, timeout_s=600)
    runner.add_argument(
        "--neighbour",
        metavar="COMMAND",
        help="a shell command line for a second lab host on one wire with the first; it has to end when COMMAND does",
    )
    runner.add_argument("command", nargs="+", metavar="COMMAND", help="one word: a shell command line")

    starter = commands.add_parser("up", help="start a lab host that stays")
    _add_boot_options(starter, timeout_s=4 * 3600)
    commands.add_parser("down", help="end the lab host that stays")
    shell = commands.add_parser("shell", help="run COMMAND, or a shell, in the lab host that stays")
    shell.add_argument("command", nargs="*", metavar="COMMAND")
    commands.add_parser("status", help="say what is up and what is built")

    chain = commands.add_parser("toolchain", help="run COMMAND in a build root, in a copy of kmod/ (needs root)")
    chain.add_argument("--kernel", choices=sorted(KERNELS), default=DEFAULT_KERNEL)
    chain.add_argument("command", nargs="+", metavar="COMMAND", help="$KDIR stands for the kernel's headers")
    return parser


def _add_boot_options(parser: argparse.ArgumentParser, *, timeout_s: int) -> None:
    parser.add_argument("--kernel", choices=sorted(KERNELS), default=DEFAULT_KERNEL, help=f"default: {DEFAULT_KERNEL}")
    parser.add_argument(
        "--debug-kernel",
        dest="kernel",
        action="store_const",
        const="debug",
        help="--kernel debug, which checks memory, locks and itself; built here first, in half an hour",
    )
    parser.add_argument(
        "--guest-kernel",
        choices=sorted(KERNELS),
        default=DEFAULT_KERNEL,
        help="of guests in the lab host; default alike",
    )
    parser.add_argument("--minimal", action="store_true", help="busybox in an initial RAM disk instead of Debian")
    parser.add_argument("--bare", action="store_true", help="Debian with Python, but neither udev nor our software")
    parser.add_argument("--systemd", action="store_true", help="boot systemd; COMMAND starts when the system is up")
    parser.add_argument("--reboots", action="store_true", help="with --systemd: the lab host may reboot (lab-reboot)")
    parser.add_argument("--icount", action="store_true", help="virtual time, one CPU; nothing may wait for the outside")
    parser.add_argument(
        "--virtual-time",
        action="store_true",
        help="with --kernel uml: computing takes no time, and nothing may wait for the outside",
    )
    parser.add_argument(
        "--accel",
        choices=("auto", "kvm", "tcg"),
        default="auto",
        help="auto: KVM if it really works, never on a virtual machine",
    )
    parser.add_argument("--smp", type=int, default=2, metavar="N", help="CPUs (default: 2)")
    parser.add_argument("--memory", type=int, default=2048, metavar="MIB", help="default: 2048")
    parser.add_argument(
        "--timeout", type=float, default=timeout_s, metavar="SECONDS", help=f"hard limit (default: {timeout_s})"
    )
    parser.add_argument("--env", action="append", default=[], metavar="K=V", help="for COMMAND; may be repeated")
    parser.add_argument("--allow-splats", action="store_true", help="kernel complaints do not fail the run")
    parser.add_argument("--compute", action="store_true", help="with PoCL, and with OpenCL in guests")
    parser.add_argument("--no-artefacts", action="store_true", help="without anything built from kmod/")
