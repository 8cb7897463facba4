# SPDX-License-Identifier: Apache-2.0
"""A client receives the decision of an agent that answered before it had read everything; no connection is reset."""

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from vgpumgr_agent.line_socket import Reply, refusal

from tests.agent.hook.rig import load_client
from vgpumgr.cli import agent_socket
from vgpumgr.errors import AgentUnreachableError

BUSY = b'{"ok": false, "code": "agent.busy", "reason": "64 requests hang"}\n'


class LateSocket(socket.socket):
    """A socket that sends its request only after the agent has hung up."""

    def connect(self, address: str) -> None:  # type: ignore[override]  # no other address is used
        super().connect(address)
        poll = select.poll()
        poll.register(self, 0)
        assert poll.poll(10_000) == [(self.fileno(), select.POLLHUP)]


@contextmanager
def hanging_up(path: Path, answer: bytes, *, asked: bool = False) -> Iterator[None]:
    """An agent that answers one connection with these bytes and closes it without reading.

    `asked`: it waits for a request first.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                if asked:
                    connection.recv(1, socket.MSG_PEEK)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join()


def test_who_still_talks_is_answered_whole_and_then_told_to_stop() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.settimeout(20)
        theirs.sendall(b"never read" * 10_000)
        Reply(ours).send(refusal("request.invalid", "too long"))
        with pytest.raises(BrokenPipeError):
            theirs.send(b"more")
        with theirs.makefile("rb") as answer:
            assert answer.read() == b'{"ok":false,"code":"request.invalid","reason":"too long"}\n'


def test_who_never_stops_talking_is_answered_whole_too() -> None:
    """Data that arrives while the agent hangs up must not count as unread data, which would reset the connection."""

    def talk(to: socket.socket, ends: list[OSError]) -> None:
        try:
            while True:
                to.send(b"on and on")
        except OSError as error:
            ends.append(error)

    for _ in range(100):
        ours, theirs = socket.socketpair()
        ends: list[OSError] = []
        with theirs:
            theirs.settimeout(20)
            talker = threading.Thread(target=talk, args=(theirs, ends))
            talker.start()
            ours.recv(1)
            Reply(ours).send(refusal("request.invalid", "too long"))
            with theirs.makefile("rb") as answer:
                assert answer.read() == b'{"ok":false,"code":"request.invalid","reason":"too long"}\n'
            talker.join()
        assert [type(error) for error in ends] == [BrokenPipeError]


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


@pytest.mark.parametrize("asked", [False, True])
def test_who_is_not_answered_is_told_so_whenever_that_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, asked: bool
) -> None:
    """The agent treats other users this way."""
    if not asked:
        monkeypatch.setattr(socket, "socket", LateSocket)
    with (
        hanging_up(tmp_path / "hook.sock", b"", asked=asked),
        pytest.raises(AgentUnreachableError, match="the answer is not the agent's"),
    ):
        agent_socket.exchange(tmp_path / "hook.sock", {"v": 1})
