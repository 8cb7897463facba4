# SPDX-License-Identifier: Apache-2.0
"""The helper's socket: its permitted users, sizes and time limits. `line_socket` serves it."""

import logging
import socket
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from vgpumgr.errors import VgpumgrError
from vgpumgr_agent.helper import request
from vgpumgr_agent.helper.protocol import REQUEST_BYTES_MAX, Code
from vgpumgr_agent.line_socket import LineServer, Reply, TooLongError, listen, peer_uid, receive_line, refusal
from vgpumgr_agent.refused import Refused

log = logging.getLogger(__name__)

_CONNECTIONS_MAX = 32
_REASON_CHARACTERS = 500
_SEND_S = 10

Run = Callable[[str, dict[str, Any]], dict[str, Any]]


class Server:
    """Answers on a Unix socket until it is closed."""

    def __init__(
        self,
        path: Path,
        run: Run,
        *,
        uids: Collection[int],
        gid: int = -1,
        root_uid: int = 0,
        deadline_s: float = 5.0,
    ) -> None:
        """Listen. `uids`: permitted users; `gid`: group of the socket file; `deadline_s`: time limit to send a request.

        `root_uid`: the user who may request `request.ROOT_ONLY`.

        Raises OSError; SocketTakenError if another helper listens there.
        """
        self._run = run
        self._uids = frozenset(uids)
        self._root_uid = root_uid
        self._deadline_s = deadline_s
        self._listener = listen(path, mode=0o660, gid=gid)
        self._server = LineServer(
            self._listener,
            name="request",
            places=_CONNECTIONS_MAX,
            serve=self._converse,
            turn_away=_turn_away,
            send_s=_SEND_S,
        )

    def serve(self) -> None:
        """Answer until `close` is called."""
        self._server.run()

    def close(self) -> None:
        """Stop listening. Requests in progress finish."""
        self._server.close()
        self._listener.close()

    def _converse(self, connection: socket.socket, reply: Reply) -> None:
        reply.send(self._answer(connection))

    def _answer(self, connection: socket.socket) -> dict[str, Any]:
        uid = peer_uid(connection)
        if uid not in self._uids:
            return _no(Code.PEER_REFUSED, f"uid {uid} may not use the helper; the agent's user and root may")
        try:
            deadline = time.monotonic() + self._deadline_s
            line = receive_line(connection, limit=REQUEST_BYTES_MAX, deadline=deadline)
            operation, members = request.parse(line)
            if operation in request.ROOT_ONLY and uid != self._root_uid:
                return _no(Code.PEER_REFUSED, f"uid {uid} may not ask for {operation}; root may")
            return {"ok": True, **self._run(operation, members)}
        except TooLongError:
            return _no(Code.REQUEST_TOO_LARGE, f"a request has at most {REQUEST_BYTES_MAX} bytes")
        except TimeoutError:
            return _no(Code.REQUEST_INVALID, f"no request within {self._deadline_s:g} s")
        except ConnectionError as error:
            return _no(Code.REQUEST_INVALID, str(error))
        except Refused as refused:
            return _no(refused.code, refused.reason)
        except VgpumgrError as error:
            return _no(error.code, str(error))
        except Exception as error:
            log.exception("a request failed")
            return _no(Code.INTERNAL, f"{type(error).__name__}: {error}")


def _no(code: str, reason: str) -> dict[str, Any]:
    answer = refusal(code, reason)
    return answer | {"reason": answer["reason"][:_REASON_CHARACTERS]}


def _turn_away(reply: Reply, _full: bool) -> None:
    reply.send(_no(Code.HELPER_BUSY, "too many requests at once; try again"))
