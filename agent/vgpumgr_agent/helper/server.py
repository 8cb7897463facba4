# SPDX-License-Identifier: Apache-2.0
"""The helper's socket: who may speak, how much, for how long.

The server owns the socket file; each connection has a thread of its own, for one exchange.
"""

import contextlib
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from vgpumgr.errors import VgpumgrError
from vgpumgr_agent.helper import request
from vgpumgr_agent.helper.protocol import REQUEST_BYTES_MAX, Code, TooLongError, encode, receive_line
from vgpumgr_agent.refused import Refused

log = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_CONNECTIONS_MAX = 32
_BACKLOG = 64

Run = Callable[[str, dict[str, Any]], dict[str, Any]]


class Server:
    """Answers on a Unix socket until closed."""

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
        """Listen. `uids`: who may speak; `gid`: group of the socket file; `deadline_s`: for a request to arrive.

        `root_uid`: the one who may ask for `request.ROOT_ONLY`.

        OSError, also if another helper listens there.
        """
        self._run = run
        self._uids = frozenset(uids)
        self._root_uid = root_uid
        self._deadline_s = deadline_s
        self._slots = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            _take_over(path)
            _bind(self._socket, path, gid)
            self._socket.listen(_BACKLOG)
        except BaseException:
            self._socket.close()
            raise

    def serve(self) -> None:
        """Answer until `close` is called."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if not self._slots.acquire(blocking=False):
                _turn_away(connection)
                continue
            try:
                threading.Thread(target=self._converse, args=(connection,), name="request", daemon=True).start()
            except RuntimeError as error:  # no threads or memory: let some end
                log.warning("a request is turned away: %s", error)
                self._slots.release()
                _turn_away(connection)

    def close(self) -> None:
        """Stop listening; what was begun goes on."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _converse(self, connection: socket.socket) -> None:
        try:
            with connection:
                _answer(connection, self._reply(connection))
        finally:
            self._slots.release()

    def _reply(self, connection: socket.socket) -> dict[str, Any]:
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        uid = _CREDENTIALS.unpack(peer)[1]
        if uid not in self._uids:
            return _refusal(Code.PEER_REFUSED, f"uid {uid} may not use the helper; the agent's user and root may")
        try:
            deadline = time.monotonic() + self._deadline_s
            line = receive_line(connection, limit=REQUEST_BYTES_MAX, deadline=deadline)
            operation, members = request.parse(line)
            if operation in request.ROOT_ONLY and uid != self._root_uid:
                return _refusal(Code.PEER_REFUSED, f"uid {uid} may not ask for {operation}; root may")
            return {"ok": True, **self._run(operation, members)}
        except TooLongError:
            return _refusal(Code.REQUEST_TOO_LARGE, f"a request has at most {REQUEST_BYTES_MAX} bytes")
        except TimeoutError:
            return _refusal(Code.REQUEST_INVALID, f"no request within {self._deadline_s:g} s")
        except ConnectionError as error:
            return _refusal(Code.REQUEST_INVALID, str(error))
        except Refused as error:
            return _refusal(error.code, error.reason)
        except VgpumgrError as error:
            return _refusal(error.code, str(error))
        except Exception as error:
            log.exception("a request failed")
            return _refusal(Code.INTERNAL, f"{type(error).__name__}: {error}")


def _bind(listener: socket.socket, path: Path, gid: int) -> None:
    """Make the socket file with mode 0660 and its group from the start.

    The directory belongs to the agent's user, who could put a link to another file in its place before a chmod.
    """
    mask, group = os.umask(0o117), os.getegid()
    try:
        if gid not in (-1, group):
            os.setegid(gid)
        listener.bind(str(path))
    finally:
        if os.getegid() != group:
            os.setegid(group)
        os.umask(mask)


def _take_over(path: Path) -> None:
    """Remove the socket file of a helper that is gone."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(f"{path} is there and no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise FileExistsError(f"another helper listens at {path}; stop that first")


def _refusal(code: str, reason: str) -> dict[str, Any]:
    return {"ok": False, "code": str(code), "reason": " ".join(reason.split())[:500]}


def _turn_away(connection: socket.socket) -> None:
    with connection:
        _answer(connection, _refusal(Code.HELPER_BUSY, "too many requests at once; try again"))


def _answer(connection: socket.socket, answer: dict[str, Any]) -> None:
    connection.settimeout(10)
    with contextlib.suppress(OSError):
        connection.sendall(encode(answer))
