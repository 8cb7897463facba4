# SPDX-License-Identifier: Apache-2.0
"""An agent that has decided before it has read everything is heard all the same, and nobody's connection is reset."""

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from vgpumgr_agent.hook_server import Reply, no

from tests.agent.hook.rig import load_client
from vgpumgr.cli import agent_socket

BUSY = b'{"ok": false, "code": "agent.busy", "reason": "64 requests hang"}\n'


class LateSocket(socket.socket):
    """One who asks only when the agent has hung up."""

    def connect(self, address: str) -> None:  # type: ignore[override]  # no other address is used
        super().connect(address)
        poll = select.poll()
        poll.register(self, 0)
        assert poll.poll(10_000) == [(self.fileno(), select.POLLHUP)]


@contextmanager
def hanging_up(path: Path, answer: bytes) -> Iterator[None]:
    """An agent that answers one connection with these bytes, unasked, and closes it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def test_who_still_talks_is_answered_whole_and_then_told_to_stop() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.settimeout(20)
        theirs.sendall(b"never read" * 10_000)
        Reply(ours).send(no("request.invalid", "too long"))
        with pytest.raises(BrokenPipeError):
            theirs.send(b"more")
        with theirs.makefile("rb") as answer:
            assert answer.read() == b'{"ok": false, "code": "request.invalid", "reason": "too long"}\n'


def test_the_hook_hears_an_agent_that_did_not_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = load_client()
    monkeypatch.setattr(socket, "socket", LateSocket)
    with hanging_up(tmp_path / "hook.sock", BUSY), pytest.raises(client.AgentError, match="64 requests hang"):
        client.ask({"v": 1}, str(tmp_path / "hook.sock"))


def test_the_command_line_hears_an_agent_that_did_not_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", LateSocket)
    with hanging_up(tmp_path / "hook.sock", BUSY):
        answer = agent_socket.exchange(tmp_path / "hook.sock", {"v": 1})
    assert answer == {"ok": False, "code": "agent.busy", "reason": "64 requests hang"}
