# SPDX-License-Identifier: Apache-2.0
"""How agent and helper talk: one JSON object and a newline each way, one exchange per connection.

A request is ``{"v": 1, "op": OP, ...}``, the answer ``{"ok": true, ...}`` or
``{"ok": false, "code": CODE, "reason": TEXT}``. Codes are the frozen ones of `vgpumgr.errors` and those below.
"""

import json
import socket
import time
from enum import StrEnum
from typing import Any

VERSION = 1
REQUEST_BYTES_MAX = 1 << 20
ANSWER_BYTES_MAX = 64 << 20
SOCKET_PATH = "/run/vgpumgr/helper.sock"
_CHUNK_BYTES = 64 << 10


class Code(StrEnum):
    """What the helper refuses on its own account."""

    REQUEST_INVALID = "request.invalid"
    REQUEST_TOO_LARGE = "request.too_large"
    PEER_REFUSED = "peer.refused"
    HELPER_BUSY = "helper.busy"
    MODULE_ABI = "module.abi"
    GPU_UNLISTED = "gpu.unlisted"
    GPU_ENGINE = "gpu.engine"
    EXECUTOR_FAILED = "executor.failed"
    EXECUTOR_NEEDED = "executor.needed"
    SETTINGS_INVALID = "settings.invalid"
    HOST_UNWRITABLE = "host.unwritable"
    RECORD_MISSING = "record.missing"
    SLICE_FOREIGN = "slice.foreign"
    SLICE_MISMATCH = "slice.mismatch"
    SLICE_OPEN = "slice.open"
    SLICE_PERMITTED = "slice.permitted"
    SLICE_REMOVING = "slice.removing"
    INTERNAL = "internal"


class TooLongError(Exception):
    """A line is longer than allowed."""


def receive_line(connection: socket.socket, *, limit: int, deadline: float) -> bytes:
    """Return what comes before the first newline. `deadline`: by time.monotonic().

    TooLongError, TimeoutError; ConnectionError if the peer hangs up first.
    """
    parts: list[bytes] = []
    length = 0
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        part = connection.recv(_CHUNK_BYTES)
        if not part:
            raise ConnectionError("hung up before the end of the line")
        end = part.find(b"\n")
        length += len(part) if end < 0 else end
        if length > limit:
            raise TooLongError
        if end >= 0:
            return b"".join([*parts, part[:end]])
        parts.append(part)


def encode(message: dict[str, Any]) -> bytes:
    """Return a message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
