# SPDX-License-Identifier: Apache-2.0
"""A program in the place of vgpu-executor, and the settings that name it, below a fake root.

It says that it is ready and waits to be ended; at SIGUSR1 it has used 1234 bytes of 4096. What a file `executor` below
the root holds makes it do something else.
"""

import sys
import tempfile
from pathlib import Path

from vgpumgr_agent.helper.processes import Processes

from tests.agent.fakekernel import GPU
from vgpumgr.control.executor_settings import LENDING
from vgpumgr.control.sysfs import HostPaths

_PROGRAM = """#!{python} -SE
import os, pathlib, signal, socket, sys
say = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
say.connect(os.environ["NOTIFY_SOCKET"])
said = pathlib.Path({root!r}, "executor")
how = said.read_text() if said.exists() else ""
if how == "hangs":
    signal.pause()
if how:
    say.send(b"STATUS=" + how.encode())
    sys.exit(1)
serving = "STATUS=serving the slice; memory_used_bytes=%d memory_bytes=4096"
signal.signal(signal.SIGUSR1, lambda *_: say.send((serving % 1234).encode()))
say.send(b"READY=1\\n" + (serving % 0).encode())
while True:
    signal.pause()
"""


def processes(root: Path) -> Processes:
    """Executors of a host whose root is another directory."""
    return Processes(directory(root), cgroup_mount=root / "sys/fs/cgroup")


def directory(root: Path) -> Path:
    """Where its executors are kept: the path of a socket has at most 107 characters, and pytest's may have more."""
    return Path(tempfile.gettempdir()) / f"vgpumgr-{root.stat().st_ino}"


def install(root: Path, *, engine: str = LENDING, more: str = "") -> None:
    """Install the program, and have the first GPU lend."""
    program = root / "lib/vgpu-executor"
    program.parent.mkdir(exist_ok=True)
    program.write_text(_PROGRAM.format(python=sys.executable, root=str(root)))
    program.chmod(0o755)
    settings = HostPaths(root).agent_settings
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(
        f'[executor]\nlibrary = "/usr/lib/libpocl.so.2"\ndirectory = "{program.parent}"\n{more}\n'
        f'[gpus."{GPU}"]\nengine = "{engine}"\n'
    )


def behave(root: Path, how: str = "") -> None:
    """From now on an executor that starts `hangs`, or fails for this reason; with nothing it works."""
    (root / "executor").write_text(how)


def alive(root: Path, uuid: object) -> list[int]:
    """Processes that execute for a slice of this host."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(root / "lib/vgpu-executor").encode() in words and str(uuid).encode() in words:
            found.append(int(path.parent.name))
    return sorted(found)
