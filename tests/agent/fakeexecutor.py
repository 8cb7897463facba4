# SPDX-License-Identifier: Apache-2.0
"""A program that stands in for vgpu-executor below a fake root, and the settings that name it.

It says that it is ready and waits until it is ended. After SIGUSR1 it reports 1234 used bytes of 4096. The content of
the file `executor` below the root makes it behave differently.
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
    """Executors of a host with another root."""
    return Processes(directory(root), cgroup_mount=root / "sys/fs/cgroup")


def directory(root: Path) -> Path:
    """Directory of the host's executors. The path of a socket has at most 107 characters; pytest's may be longer."""
    return Path(tempfile.gettempdir()) / f"vgpumgr-{root.stat().st_ino}"


def install(root: Path, *, engine: str = LENDING, more: str = "") -> None:
    """Install the program, and make the first GPU's engine lend."""
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
    """From now on an executor that starts `hangs` or fails for this reason; without a reason it works."""
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
