# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the host agent behind the real socket server: records each call, and refuses on demand.

    python3 hook_agent.py SOCKET DIRECTORY

Calls are appended to DIRECTORY/calls, one JSON object a line. While DIRECTORY/refuse exists, `prepare` is refused with
the code and the reason on its first two lines, unless the lines after them list every device. Imports only modules of
the checkout.
"""

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from vgpumgr_agent.hook.server import HookServer
from vgpumgr_agent.refused import Refused


class NotingService:
    """Records every question in a file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()

    def _note(self, call: str, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], word: str) -> None:
        line = json.dumps([call, str(vm_uuid), [str(one) for one in devices], [str(one) for one in metadata], word])
        with self._lock, (self._directory / "calls").open("a") as calls:
            calls.write(line + "\n")

    def prepare(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        self._note("prepare", vm_uuid, devices, metadata, domain)
        refuse = self._directory / "refuse"
        if refuse.exists():
            code, reason, *prepared = refuse.read_text().splitlines()
            if devices and all(str(one) in prepared for one in devices):
                return
            raise Refused(code, reason)

    def started(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        self._note("started", vm_uuid, devices, metadata, domain)

    def release(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], reason: str) -> None:
        self._note("release", vm_uuid, devices, metadata, reason)

    def hotplug(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        self._note("hotplug", vm_uuid, devices, metadata, domain)

    def unplug(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        self._note("unplug", vm_uuid, devices, metadata, domain)


def main() -> None:
    socket, directory = map(Path, sys.argv[1:])
    socket.parent.mkdir(parents=True, exist_ok=True)
    HookServer(socket, NotingService(directory)).start()
    print("listening", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
