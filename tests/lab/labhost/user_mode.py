# SPDX-License-Identifier: Apache-2.0
"""A lab host whose kernel is a program of this machine: User-mode Linux, for tests of the module alone.

It boots in a second. Its processes are this machine's, so nothing is emulated. It has the PCI bus of
kernels/uml/lab_pci.c, this machine's file systems (hostfs) instead of disks, and one processor before Linux 7.0.
"""

from dataclasses import dataclass
from pathlib import Path

ENVIRON = {
    # its memory is a sparse file there, and the file system must allow execution
    "TMPDIR": "/dev/shm",
    # 6.12 clones its processes from itself, and this machine's kernel kills a process whose rseq area is unmapped
    "GLIBC_TUNABLES": "glibc.pthread.rseq=0",
}


@dataclass(frozen=True, kw_only=True)
class UserModeMachine:
    """One lab host, before it is started. The program writes the kernel's messages to standard error.

    Standard input and error must be pipes, because the program waits for them with epoll(7), which refuses files. The C
    library would then allocate memory for the error message at a point where the kernel must not sleep.

    `root`: a directory that the lab host uses as its root file system and does not write to; none in the minimal one.
    """

    program: Path
    memory_mib: int
    initrd: Path
    command_line: str
    directory: Path
    checkout: Path
    root: Path | None
    processors: int
    virtual_time: bool

    @property
    def report(self) -> Path:
        """The file for exit status and kernel log, which the lab host writes."""
        return self.directory / "report"

    @property
    def output(self) -> Path:
        """The file for the command's output, which the lab host writes."""
        return self.directory / "output"

    @property
    def serial_log(self) -> Path:
        """The kernel's messages."""
        return self.directory / "serial.log"

    def command(self) -> list[str]:
        """The command to start, with ENVIRON; `setarch -R` because its memory addresses are fixed when it is linked."""
        words = [
            self.command_line,
            f"lab.machine=uml lab.checkout={self.checkout} lab.directory={self.directory}",
            *([f"lab.root={self.root}"] if self.root else []),
            # computing takes no time, and each trap takes a microsecond; when all threads sleep, time jumps to the next
            # wakeup
            *(["time-travel=inf-cpu"] if self.virtual_time else []),
            # several processors work only when seccomp(2) catches system calls instead of ptrace(2)
            *([f"seccomp=on ncpus={self.processors}"] if self.processors > 1 else []),
            "con=null con0=fd:0,fd:2",
        ]
        return [
            "setarch", "-R", str(self.program),
            f"mem={self.memory_mib}M", f"initrd={self.initrd}", *" ".join(words).split(),
        ]  # fmt: skip
