# SPDX-License-Identifier: Apache-2.0
"""Who opens a connection and does not say what it wants does not keep it; who waits for an answer does."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState
from vgpumgr_api import server as server_module
from vgpumgr_api.server import Protocol

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
SOON_S = 60


async def application(
    _scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    await asyncio.sleep(0.5)  # longer than what a client has
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def heard(*said: bytes) -> bytes:
    """All that a client gets that says this and then nothing, until it is cut off."""

    async def talk() -> bytes:
        config = uvicorn.Config(application, lifespan="off", log_config=None, timeout_keep_alive=1)
        state = ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Protocol(config, state, {}), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for part in said:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.02)
        got = b""
        try:
            while piece := await reader.read(1000):
                got += piece
        except ConnectionResetError:
            pass
        writer.close()
        server.close()
        return got

    return asyncio.run(asyncio.wait_for(talk(), SOON_S))


@pytest.mark.parametrize("said", [(), (HEAD[:20],), (HEAD[:5], HEAD[5:9], HEAD[9:20]), (HEAD,), (HEAD, b"ab")])
def test_who_does_not_come_to_the_point_is_cut_off(said: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEAD_S", 0.2)
    monkeypatch.setattr(server_module, "BODY_S", 0.2)
    assert heard(*said) == b""


def test_a_request_behind_another_has_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "BODY_S", 0.2)
    assert heard(HEAD + b"abcd" + HEAD + b"ab").count(b"HTTP/1.1 204") == 1


def test_who_has_said_all_waits_for_the_answer_and_may_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEAD_S", 0.2)
    monkeypatch.setattr(server_module, "BODY_S", 0.2)
    assert heard(HEAD + b"abcd", HEAD + b"abcd").count(b"HTTP/1.1 204") == 2
