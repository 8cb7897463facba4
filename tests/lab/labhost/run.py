# SPDX-License-Identifier: Apache-2.0
"""Boots a fresh lab host, runs one command in it, and reports how that ended.

A run owns a directory with its initial RAM disk and logs. A neighbour, which is a second lab host on one wire with the
first, has a directory in it. QEMU is a child that the kernel kills when this process dies, so nothing is left behind
however a run ends.
"""

import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from labhost import initrd, kernel_image, splats, unsteady
from labhost.build import Ingredients, ingredients
from labhost.command import spawn, tail
from labhost.errors import EXIT_LAB_FAILED, EXIT_SPLAT, EXIT_TIMEOUT, LabError
from labhost.paths import Paths
from labhost.progress import say
from labhost.qemu import Emulation, Machine, Wire, kvm_usable
from labhost.toolchain import DEFAULT_KERNEL
from labhost.user_mode import ENVIRON, UserModeMachine

_POWER_OFF_LIMIT_S = 10.0
_POLL_S = 0.5
_USER_MODE_POLL_S = 0.05
_NEIGHBOUR_LIMIT_S = 120.0
"""The limit after the end of the first lab host."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a lab host; the same for `run` and `up`."""

    kernel: str = DEFAULT_KERNEL
    guest_kernel: str = DEFAULT_KERNEL
    minimal: bool = False
    bare: bool = False
    systemd: bool = False
    icount: bool = False
    virtual_time: bool = False
    accelerator: str = "auto"
    cpus: int = 2
    memory_mib: int = 2048
    timeout_s: float = 600.0
    allow_splats: bool = False
    artefacts: bool = True
    compute: bool = False
    reboots: bool = False
    neighbour: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def mode(self) -> str:
        """The user space that is booted."""
        return next((mode for mode in ("minimal", "bare", "systemd") if getattr(self, mode)), "host")


def parts_of(paths: Paths, options: Options) -> Ingredients:
    """Return the parts of a lab host with these options; builds missing ones."""
    return ingredients(
        paths,
        options.kernel,
        mode=options.mode,
        guest_kernel=options.guest_kernel,
        artefacts=options.artefacts,
        computes=options.compute,
    )


def script(options: Options, words: Sequence[str]) -> str:
    """Return the shell script of a job. One word is a shell command line; several are a command and its arguments."""
    shell = "sh" if options.minimal else "bash"
    command = [shell, "-c", words[0]] if len(words) == 1 else list(words)
    exports = [f"export {name}={shlex.quote(value)}\n" for name, value in options.environ.items()]
    return f"{''.join(exports)}exec {shlex.join(command)}\n"


def machine(
    paths: Paths,
    options: Options,
    parts: Ingredients,
    directory: Path,
    job: str,
    *,
    ssh_port: int | None = None,
    wire: Wire | None = None,
    job_files: Mapping[str, bytes] | None = None,
) -> Machine:
    """Describe a lab host whose files are in `directory`, and write its initial RAM disk there."""
    disk = _initial_disk(parts, directory, job, job_files)
    kvm = options.accelerator == "kvm" or (
        options.accelerator == "auto"
        and not options.icount
        and kvm_usable(paths, parts.qemu, parts.toolchain, parts.initrds[0])
    )
    words = [
        "console=ttyS0", *_command_line(options, parts), "watchdog_thresh=60", "net.ifnames=0",
        # recommended for GPU hosts: otherwise khugepaged and similar threads delay the engine thread for milliseconds
        "preempt=full",
        "iomem=relaxed",  # tests raise the interrupts of a device that has a driver
        f"lab.guest_kernel={options.guest_kernel}",
        *([f"lab.wire={wire.number}"] if wire else []),
        *(["systemd.gpt_auto=0", "systemd.ssh_auto=0"] if options.systemd else []),
    ]  # fmt: skip
    return Machine(
        emulation=Emulation(kvm=kvm, icount=options.icount, cpus=options.cpus),
        memory_mib=options.memory_mib,
        kernel=kernel_image.bootable(paths, parts.toolchain),
        initrd=disk,
        command_line=" ".join(words),
        serial_log=directory / "serial.log",
        reset_log=directory / "reset.log",
        report=directory / "report",
        checkout=paths.checkout,
        root_image=parts.host_image,
        # the host's image has the default kernel's modules, including ours, which DKMS built
        modules_image=None if options.minimal or options.kernel == DEFAULT_KERNEL else parts.toolchain.modules_image,
        compute_image=parts.compute_image,
        ssh_port=ssh_port,
        wire=wire,
        reboots=options.reboots,
    )


def user_mode_machine(paths: Paths, options: Options, parts: Ingredients, directory: Path, job: str) -> UserModeMachine:
    """Describe a lab host with these options under User-mode Linux, and write its initial RAM disk."""
    return UserModeMachine(
        program=parts.toolchain.vmlinuz,
        memory_mib=options.memory_mib,
        initrd=_initial_disk(parts, directory, job),
        command_line=" ".join(_command_line(options, parts)),
        directory=directory,
        checkout=paths.checkout,
        root=parts.host_root,
        processors=options.cpus if parts.toolchain.kernel.multiprocessor else 1,
        virtual_time=options.virtual_time,
    )


def _initial_disk(parts: Ingredients, directory: Path, job: str, job_files: Mapping[str, bytes] | None = None) -> Path:
    disk = directory / "initrd"
    with disk.open("wb") as stream:
        for archive in parts.initrds:
            stream.write(archive.read_bytes())
        initrd.write_job(stream, job, job_files or {})
    return disk


def _command_line(options: Options, parts: Ingredients) -> list[str]:
    """The command line options of every kernel in the lab."""
    return [
        "loglevel=5", "panic=-1", "log_buf_len=4M",
        f"lab.mode={options.mode}", f"lab.kernel={options.kernel}",
        # only kernels that are built here have KUnit
        *(["kunit.enable=1"] if parts.toolchain.kernel.fragments else []),
        *([] if options.allow_splats else ["oops=panic"]),
    ]  # fmt: skip


def run(paths: Paths, options: Options, words: Sequence[str]) -> int:
    """Run a command in a fresh lab host; its output goes to our stdout at once.

    Returns its exit status or, if that is 0, its neighbour's; or EXIT_SPLAT, EXIT_TIMEOUT, EXIT_LAB_FAILED. Logs are
    kept unless the status is 0. A run that fails because of the lab itself is repeated once, in another lab host.
    """
    parts = parts_of(paths, options)
    status, directory = _run(paths, options, parts, words)
    if fault := unsteady.fault(status, directory):
        # tests/run counts these lines
        say(f"unsteady: {fault}; the command is run once more in a fresh lab host")
        time.sleep(1)  # directories of runs are named by the second they start in
        status, _ = _run(paths, options, parts, words)
    return status


def _run(paths: Paths, options: Options, parts: Ingredients, words: Sequence[str]) -> tuple[int, Path]:
    """Return the exit status, and the directory of the logs, which are kept unless the status is 0."""
    directory = paths.runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    directory.mkdir(parents=True)
    wire = Wire(directory=directory, number=1) if options.neighbour else None
    status = EXIT_LAB_FAILED
    try:
        if parts.toolchain.kernel.is_user_mode:
            program = user_mode_machine(paths, options, parts, directory, script(options, words))
            in_time = _boot_user_mode(program, options.timeout_s)
            status = _judge(options, program, in_time)
            return status, directory
        host = machine(paths, options, parts, directory, script(options, words), wire=wire)
        with _neighbour(paths, options, parts, directory) as end_of_neighbour:
            in_time = _boot([*parts.qemu, *host.arguments()], options.timeout_s, host.report)
            status = _judge(options, host, in_time)
            status = status or end_of_neighbour()
    finally:
        for disk in directory.rglob("initrd"):
            disk.unlink()
        if status == 0:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            say(f"exit status {status}; logs: {directory}")
    return status, directory


@contextmanager
def _neighbour(paths: Paths, options: Options, parts: Ingredients, directory: Path) -> Iterator[Callable[[], int]]:
    """Run the second lab host, if there is one, while the body runs. Yields a function that waits for its end and
    returns its status."""
    if not options.neighbour:
        yield lambda: 0
        return
    place = directory / "neighbour"
    place.mkdir()
    wire = Wire(directory=directory, number=2)
    host = machine(paths, options, parts, place, script(options, [options.neighbour]), wire=wire)
    with (
        (place / "qemu.log").open("wb") as errors,
        (place / "output.log").open("wb") as output,
        spawn([*parts.qemu, *host.arguments()], stdout=output, stderr=errors) as child,
    ):

        def end() -> int:
            deadline = time.monotonic() + _NEIGHBOUR_LIMIT_S
            while not is_complete(host.report) and child.poll() is None and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            status = _judge(options, host, is_complete(host.report))
            if status:
                print(f"--- end of {output.name}\n{tail(place / 'output.log')}", file=sys.stderr)
                say("it was the neighbour that failed")
            return status

        try:
            yield end
        finally:
            child.kill()


def _boot(command: Sequence[str], limit_s: float, report: Path) -> bool:
    """Run QEMU to its end and forward its stdout; return False if the time limit ended it."""
    deadline = time.monotonic() + limit_s
    output, output_of_qemu = os.pipe()
    with (
        (report.parent / "qemu.log").open("wb") as errors,
        spawn(command, stdout=output_of_qemu, stderr=errors) as child,
    ):
        os.close(output_of_qemu)
        try:
            while time.monotonic() < deadline:
                readable, _, _ = select.select([output], [], [], _POLL_S)
                if readable:
                    data = os.read(output, 65536)
                    if not data:
                        _note_end(child, errors)
                        return True
                    sys.stdout.buffer.write(data)
                    sys.stdout.buffer.flush()
                elif is_complete(report):
                    # the command has ended and reported its status: nothing is lost when the host hangs while it powers
                    # off
                    deadline = min(deadline, time.monotonic() + _POWER_OFF_LIMIT_S)
            return is_complete(report)
        finally:
            child.kill()
            os.close(output)


def _boot_user_mode(host: UserModeMachine, limit_s: float) -> bool:
    """Run User-mode Linux to its end and forward its command's output; False if the time limit ended it."""
    deadline = time.monotonic() + limit_s
    host.output.touch()
    messages, messages_of_kernel = os.pipe()
    with (
        host.serial_log.open("wb", buffering=0) as log,
        host.output.open("rb") as output,
        spawn(
            host.command(),
            stdin=subprocess.PIPE,
            stdout=messages_of_kernel,
            stderr=messages_of_kernel,
            environ=ENVIRON,
        ) as child,
    ):
        os.close(messages_of_kernel)
        try:
            while True:
                ended = child.poll() is not None
                if is_complete(host.report):
                    deadline = min(deadline, time.monotonic() + _POWER_OFF_LIMIT_S)
                readable, _, _ = select.select([messages], [], [], 0 if ended else _USER_MODE_POLL_S)
                said = os.read(messages, 65536) if readable else b""
                log.write(said)
                if data := output.read():
                    sys.stdout.buffer.write(data)
                    sys.stdout.buffer.flush()
                elif ended and not said:
                    return True
                elif time.monotonic() >= deadline:
                    return is_complete(host.report)
        finally:
            # its processes are in its session; killing the kernel alone would leave them behind
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            os.close(messages)


def _note_end(child: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """Append to QEMU's messages how QEMU ended."""
    with suppress(subprocess.TimeoutExpired):
        status = child.wait(_POWER_OFF_LIMIT_S)
        name = signal.Signals(-status).name if status < 0 else ""
        log.write(f"{unsteady.end_of_qemu(status, name)}\n".encode())
        log.flush()


def is_complete(report: Path) -> bool:
    """Whether the lab host's report is complete."""
    return report.is_file() and report.read_bytes().endswith(b"\nend\n")


def _judge(options: Options, host: Machine | UserModeMachine, in_time: bool) -> int:
    """Turn the files that the lab host left behind into an exit status."""
    if not host.report.parent.is_dir():
        raise LabError(f"{host.report.parent} was removed while the lab host ran: its result is lost")
    serial = host.serial_log.read_text(errors="replace") if host.serial_log.exists() else ""
    report = host.report.read_text(errors="replace") if host.report.exists() else ""
    first, _, kernel_log = report.partition("\n")
    found = splats.complaints(kernel_log) or splats.complaints(serial)
    for complaint in found:
        print(f"--- kernel complaint\n{complaint}", file=sys.stderr)
    (host.report.parent / "dmesg.log").write_text(kernel_log.removesuffix("end\n"))
    if first.startswith("status "):
        status = int(first.split()[1])
        if found and not options.allow_splats:
            say(f"the command's exit status was {status}, but the kernel complained (--allow-splats to ignore)")
            return EXIT_SPLAT
        return status
    print(f"--- end of {host.serial_log}\n{tail(host.serial_log)}", file=sys.stderr)
    if not in_time:
        say(f"stopped: the time limit of {options.timeout_s:.0f} s has passed")
        return EXIT_TIMEOUT
    if isinstance(host, Machine):
        print(tail(host.report.parent / "qemu.log"), end="", file=sys.stderr)
        if b"Triple fault" in (host.reset_log.read_bytes() if host.reset_log.exists() else b""):
            say("a processor of the lab host had a triple fault")
    say("the lab host ended without reporting an exit status")
    return EXIT_LAB_FAILED
