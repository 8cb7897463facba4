# SPDX-License-Identifier: Apache-2.0
"""Client of the host agent's socket, which the hook uses too: request and answer are one line each, a JSON object.

The protocol is described in docs/libvirt-hook.md.
"""

import contextlib
import json
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from vgpumgr.cli.privilege import as_root, to_be_permitted
from vgpumgr.errors import AgentRefusedError, AgentUnreachableError

HOOK_SOCKET = Path("run/vgpumgr/hook.sock")
HELPER_SOCKET = Path("run/vgpumgr/helper.sock")
LIMIT_S = 15.0
"""Longer than the agent takes to decide, see its PREPARE_LIMIT_S."""

ANSWER_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class AgentSocket:
    """A connection to this host's agent. AgentUnreachableError, AgentRefusedError."""

    path: Path
    limit_s: float = LIMIT_S

    def hotplug(self, *, domain: str, vm_uuid: UUID, slice_id: UUID) -> None:
        """Prepare a slice, and permit a running VM to open it once."""
        self._ask("hotplug", domain, vm_uuid, slice_id)

    def unplug(self, *, domain: str, vm_uuid: UUID, slice_id: UUID) -> None:
        """Release a slice that a running VM has given back."""
        self._ask("unplug", domain, vm_uuid, slice_id)

    def _ask(self, operation: str, domain: str, vm_uuid: UUID, slice_id: UUID) -> None:
        answer = exchange(
            self.path,
            {
                "v": 1,
                "op": operation,
                "domain": domain,
                "vm_uuid": str(vm_uuid),
                "devices": [str(slice_id)],
                "metadata": [str(slice_id)],
                "reason": "-",
            },
            limit_s=self.limit_s,
        )
        if answer.get("ok") is not True:
            code = answer.get("code")
            reason = str(answer.get("reason") or "the agent gives no reason; see its log")
            raise AgentRefusedError(reason, code=code if isinstance(code, str) and code else "agent.refused")


def exchange(path: Path, request: dict[str, Any], *, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Send one request and return its answer. This takes at most `limit_s` in all. AgentUnreachableError."""
    deadline_s = time.monotonic() + limit_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(limit_s)
            connection.connect(str(path))
            with contextlib.suppress(ConnectionError):  # the agent may answer and hang up before it reads the request
                connection.sendall(json.dumps(request).encode() + b"\n")
            line = _receive_line(connection, deadline_s)
    except TimeoutError:
        raise AgentUnreachableError(f"{path}: no answer within {limit_s:g} s; see the agent's log") from None
    except OSError as error:
        todo = to_be_permitted() if isinstance(error, PermissionError) else "check that vgpumgr-agent runs here"
        raise AgentUnreachableError(f"{path}: {error.strerror or error}; {todo}") from error
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        todo = as_root("see the agent's log")  # the agent hangs up on other users
        raise AgentUnreachableError(f"{path}: the answer is not the agent's; {todo}")
    return answer


def _receive_line(connection: socket.socket, deadline_s: float) -> bytes:
    data = bytearray()
    while not data.endswith(b"\n") and len(data) <= ANSWER_MAX_BYTES:
        connection.settimeout(max(deadline_s - time.monotonic(), 0.001))
        try:
            chunk = connection.recv(65536)
        except ConnectionResetError:  # the agent hung up without reading
            chunk = b""
        if not chunk:
            break
        data += chunk
    return bytes(data)
