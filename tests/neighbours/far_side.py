# SPDX-License-Identifier: Apache-2.0
"""The second of two lab hosts: its accelerator and its libvirt, controlled by the first one.

    python3 -m tests.neighbours.far_side

It serves a `FarSide` at ADDRESS until it is told to end. Then it unloads its module, which must have leaked nothing.
"""

import os
import signal
import threading
from contextlib import ExitStack
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

from tests.rig.gpu import Gpu, Load, the_gpu
from tests.rig.guest import CONSOLES, start_libvirt
from tests.rig.kernel import kernel_log
from tests.rig.leaks import leaks
from vgpumgr.control.model import Slice, Tenant

ADDRESS = "192.0.2.2"
PORT = 7070
KEY = b"on this wire only"
_LIBVIRTD = """
listen_tls = 0
listen_tcp = 1
listen_addr = "192.0.2.2"
auth_tcp = "none"
"""


class Connection(BaseManager):
    """The connection of a process of the first lab host: `far` is a `FarSide`, whose calls run there. For one
    thread."""


Connection.register("far")


class FarSide:
    """The operations that the first lab host may run on this one. For one thread."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._load = ExitStack()
        self.over = threading.Event()

    def tenant(self, name: str, **settings: Any) -> None:
        self._gpu.tenant(name, **settings)

    def slice(self, tenant: str | None = None, *, memory: str = "mem16m") -> str:
        return self._gpu.slice(tenant, memory=memory)

    def stats(self, tenant: str) -> Tenant:
        return self._gpu.stats(tenant)

    def slice_stats(self, uuid: str) -> Slice:
        return self._gpu.slice_stats(uuid)

    def load(self, load: Load) -> None:
        """Lasts until `clear`."""
        self._load.enter_context(self._gpu.loaded(load))

    def share_over(self, seconds: float, tenant: str) -> float:
        return self._gpu.measured_over(seconds).share[tenant]

    def console(self, name: str) -> str:
        """The output of a VM on this host."""
        return (CONSOLES / f"{name}.log").read_text(errors="replace")

    def kernel_log(self) -> str:
        return kernel_log()

    def kill_vmm(self, name: str) -> None:
        os.kill(int(Path(f"/run/libvirt/qemu/{name}.pid").read_text()), signal.SIGKILL)

    def clear(self) -> None:
        """Remove everything that was made here; no VM uses a slice any more."""
        self._load.close()
        self._gpu.clear()

    def end(self) -> None:
        self.over.set()


class _Server(BaseManager):
    pass


def main() -> None:
    CONSOLES.mkdir(exist_ok=True)
    with Path("/etc/libvirt/libvirtd.conf").open("a") as settings:
        settings.write(_LIBVIRTD)
    start_libvirt("--listen")
    with the_gpu() as gpu:
        far = FarSide(gpu)
        _Server.register("far", callable=lambda: far)
        server = _Server(address=(ADDRESS, PORT), authkey=KEY).get_server()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        far.over.wait()
        far.clear()
        lost = leaks()
        assert not lost, f"the kernel lost memory:\n{lost}"


if __name__ == "__main__":
    main()
