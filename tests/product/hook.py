# SPDX-License-Identifier: Apache-2.0
"""Asks the agent's hook socket the way libvirt's hook does, for tests that need no VM."""

import json
import socket
from pathlib import Path
from typing import Any

SOCKET = Path("/run/vgpumgr/hook.sock")
NAMESPACE = "https://vgpumgr.dev/xmlns/domain/1"
_LIMIT_S = 30


def ask(operation: str, slice_id: str, *, vm_uuid: str, reason: str = "-") -> dict[str, Any]:
    """Ask one question. No answer counts as a refusal with code "none", which is how the hook takes it."""
    request = {
        "v": 1,
        "op": operation,
        "domain": "test",
        "vm_uuid": vm_uuid,
        "devices": [slice_id],
        "metadata": [slice_id],
        "reason": reason,
    }
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_LIMIT_S)
            connection.connect(str(SOCKET))
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as stream:
                return dict(json.loads(stream.readline() or b'{"ok": false, "code": "none", "reason": "hung up"}'))
    except OSError as error:
        return {"ok": False, "code": "none", "reason": str(error)}


def refusal(slice_id: str, *, vm_uuid: str) -> str:
    """Return the code with which `prepare` is refused, or "" if it is allowed. Every refusal gives its reason in one
    line."""
    answer = ask("prepare", slice_id, vm_uuid=vm_uuid)
    if answer["ok"]:
        return ""
    reason = answer["reason"]
    if not reason or "\n" in reason or len(reason) > 300:
        raise ValueError(f"not one short line: {reason!r}")
    return str(answer["code"])


def metadata(*slice_ids: str) -> str:
    """What `vgpumgr attach` writes into a domain's metadata."""
    named = "".join(f"<vgpumgr:slice id='{slice_id}'/>" for slice_id in slice_ids)
    return f"<vgpumgr:slices xmlns:vgpumgr='{NAMESPACE}'>{named}</vgpumgr:slices>"
