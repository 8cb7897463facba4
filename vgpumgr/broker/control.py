# SPDX-License-Identifier: Apache-2.0
"""Client of a running broker's control socket: lines of JSON, see compute/broker/control.h."""

import errno
import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vgpumgr.errors import BrokerAnswerError, BrokerRefusedError, BrokerUnreachableError

CONTROL = "control"
SOCKET_PATH_MAX = 107
"""sun_path of sockaddr_un, without its final zero."""
CONTROL_DENIED = "only root and the user who runs the broker may see and change it; run this as one of them"
LIMIT_S = 10.0
MAX_BYTES = 64 << 20


class Control:
    """One broker, identified by its run directory. Each call opens a new connection."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def show(self) -> dict[str, Any]:
        """Return the state of the broker and its tenants."""
        return self._ask({"op": "show"})

    def set(self, settings: dict[str, Any], *, generation: int) -> int:
        """Replace the whole configuration if its generation is still `generation`. Return the new generation."""
        return int(self._ask({"op": "set", "generation": generation, "settings": settings})["generation"])

    def stop(self) -> None:
        """Stop the broker. The broker answers before its process ends."""
        self._ask({"op": "stop"})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        path = self.directory / CONTROL
        if len(os.fsencode(path)) > SOCKET_PATH_MAX:
            raise BrokerUnreachableError(f"{path} is too long for a socket, so no broker can have this run directory")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(LIMIT_S)
                connection.connect(str(path))
                connection.sendall(json.dumps(request).encode() + b"\n")
                answer = _line(connection)
        except OSError as error:
            raise unreachable(path, error, denied=CONTROL_DENIED) from None
        try:
            found = json.loads(answer)
        except ValueError:
            raise BrokerAnswerError(f"{path}: the answer is not a broker's") from None
        if not isinstance(found, dict) or "ok" not in found:
            raise BrokerAnswerError(f"{path}: the answer is not a broker's")
        if not found["ok"]:
            raise refused(found)
        return found


def _line(connection: socket.socket) -> bytes:
    parts = []
    size = 0
    while part := connection.recv(1 << 16):
        parts.append(part)
        size += len(part)
        if part.endswith(b"\n") or size > MAX_BYTES:
            break
    return b"".join(parts)


def refused(answer: dict[str, Any]) -> BrokerRefusedError:
    """Return the error for a refusal of the broker."""
    field = str(answer.get("field", ""))
    detail = str(answer.get("detail", ""))
    return BrokerRefusedError(
        f"{field}: {detail}" if field else detail, code=str(answer.get("code", "broker.refused")), field=field
    )


def field_invalid(field: str, detail: str) -> BrokerRefusedError:
    """Return the broker's error for a field, for faults that are found before the broker is asked."""
    return refused({"code": "field.invalid", "field": field, "detail": detail})


def unreachable(path: Path, error: OSError, *, denied: str) -> BrokerUnreachableError | BrokerRefusedError:
    """Return the error for a failed connection to a broker's socket. `denied`: the text for a denied permission."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return BrokerRefusedError(f"{path}: {denied}", code="permission.denied")
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED, errno.ENOTSOCK):
        return BrokerUnreachableError(
            f"{path}: no broker is there; start one with `vgpumgr broker run FILE`, or give its --run-directory"
        )
    return BrokerUnreachableError(f"{path}: {(error.strerror or str(error)).lower()}")


def no_tenant(directory: Path, name: str, there: Iterable[str]) -> BrokerRefusedError:
    """Return the error for a tenant that the broker does not have. `there`: the broker's tenants."""
    return BrokerRefusedError(
        f"the broker in {directory} has no tenant {name!r}; it has {', '.join(sorted(there)) or 'none'}",
        code="object.unknown",
    )
