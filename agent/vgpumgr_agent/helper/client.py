# SPDX-License-Identifier: Apache-2.0
"""Client of the root helper: one connection per request."""

import contextlib
import json
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpumgr_agent.helper.protocol import ANSWER_BYTES_MAX, SOCKET_PATH, VERSION
from vgpumgr_agent.line_socket import TooLongError, encode, receive_line
from vgpumgr_agent.refused import Refused, UnavailableError

_RETRY_S = 0.2


@dataclass(frozen=True)
class HelperClient:
    """The helper's address. Threads may share it."""

    path: Path = Path(SOCKET_PATH)

    def call(self, operation: str, *, timeout_s: float = 10.0, retry: bool = False, **members: Any) -> dict[str, Any]:
        """Request an operation. Return the members of the answer.

        `retry`: if the helper is away or dies, retry the request until the time is over. All operations may be retried.
        Raises Refused, UnavailableError.
        """
        deadline = time.monotonic() + timeout_s
        line = encode({"v": VERSION, "op": operation, **members})
        while True:
            try:
                answer = self._exchange(line, deadline)
                break
            except (OSError, TooLongError) as error:
                if not retry or isinstance(error, TooLongError) or time.monotonic() + _RETRY_S > deadline:
                    why = str(error) or type(error).__name__
                    raise UnavailableError(
                        "helper.unavailable", f"no answer from vgpumgr-helper at {self.path} ({why}); is it running?"
                    ) from error
            time.sleep(_RETRY_S)
        if answer.pop("ok", None) is True:
            return answer
        raise Refused(str(answer.get("code", "internal")), str(answer.get("reason", "no reason given")))

    def _exchange(self, line: bytes, deadline: float) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(max(deadline - time.monotonic(), 0.01))
            connection.connect(str(self.path))
            with contextlib.suppress(ConnectionError):  # the helper may refuse before it has read the request
                connection.sendall(line)
            answer = receive_line(connection, limit=ANSWER_BYTES_MAX, deadline=deadline)
        try:
            message = json.loads(answer)
        except ValueError as error:
            raise OSError("an answer that is not JSON") from error
        if not isinstance(message, dict):
            raise OSError("an answer that is not an object")
        return message
