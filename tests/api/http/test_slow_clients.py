# SPDX-License-Identifier: Apache-2.0
"""A connection does not stay open if its client sends no complete request or does not take its answer.

A client that waits for an answer keeps its connection.
"""

import asyncio
import ssl
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from vgpumgr_api.actors import local_operator
from vgpumgr_api.app import create_app
from vgpumgr_api.auth import tokens
from vgpumgr_api.db.database import Database
from vgpumgr_api.edge.transport import protocol
from vgpumgr_api.errors import Refusal
from vgpumgr_api.overload.bodies import ADDRESS_PART, STRANGERS_PART, Bodies
from vgpumgr_api.overload.connections import network_of

from tests.api.http.listening import listening, problem, run
from tests.api.http.tls import make_certificate
from vgpumgr.wire.resources import TokenCreate, TokenRole

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
STRANGER = b"GET /v1/health/live HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
TENANT = (
    b"POST /v1/tenants HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"
    b"Content-Type: application/json\r\nContent-Length: 16\r\n\r\n"
)
LARGE = 20 << 20
"""In bytes: more than the kernel buffers at both ends together."""
PIECES = 5


async def application(
    _scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    await asyncio.sleep(0.5)  # longer than the time limit of a client
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def generous(_scope: Any, _receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * LARGE})


async def endless(_scope: Any, _receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for piece in range(PIECES):
        await send({"type": "http.response.body", "body": b"x" * LARGE, "more_body": piece < PIECES - 1})
        await asyncio.sleep(0.6)


def heard(*said: bytes, **settings: float) -> bytes:
    """Returns everything that a client gets that sends this and then nothing, until the connection ends."""

    async def talk() -> bytes:
        async with listening(application, **({"idle_s": 1} | settings)) as server:
            got = await (await server.open(*said)).heard()
            await server.empty()
            return got

    return run(talk())


def test_who_says_nothing_is_cut_off() -> None:
    assert heard(head_s=0.2) == b""


@pytest.mark.parametrize("said", [(HEAD[:20],), (HEAD[:5], HEAD[5:9], HEAD[9:20])])
def test_who_does_not_come_to_the_point_is_told_so(said: tuple[bytes, ...]) -> None:
    status, code, headers = problem(heard(*said, head_s=2))
    assert (status, code, headers["connection"]) == (408, "request.timeout", "close")


def test_a_head_behind_an_answer_has_no_more_time_than_the_first() -> None:
    answers = heard(HEAD + b"abcd" + HEAD[:20], head_s=0.2, idle_s=60)
    first, _, rest = answers.partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 204")
    assert problem(rest)[:2] == (408, "request.timeout")


@pytest.mark.parametrize("said", [(HEAD,), (HEAD, b"ab")])
def test_who_goes_on_with_a_body_for_too_long_is_cut_off(
    said: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "GRACE_S", 0.1)
    assert heard(*said, body_s=0.1) == b""


@pytest.mark.parametrize(
    ("begun", "allowed"), [(HEAD[:20], {"head_s": 0.5}), (HEAD.replace(b"4", b"999"), {"body_s": 0.4})]
)
def test_who_says_a_little_again_and_again_has_no_more_time(
    begun: bytes, allowed: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "GRACE_S", 0.1)

    async def talk() -> bool:
        async with listening(application, **({"idle_s": 60, "head_s": 60, "body_s": 60} | allowed)) as server:
            client = await server.open(begun)
            ended = asyncio.ensure_future(client.heard())
            for _ in range(200):
                client.writer.write(b"x")
                await asyncio.sleep(0.05)
                if ended.done():
                    return True
            client.writer.close()
            return False

    assert run(talk())


def test_a_request_behind_another_has_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "GRACE_S", 0.1)
    assert heard(HEAD + b"abcd" + HEAD + b"ab", body_s=0.1).count(b"HTTP/1.1 204") == 1


def test_who_has_said_all_waits_for_the_answer_and_may_ask_again() -> None:
    assert heard(HEAD + b"abcd", HEAD + b"abcd", head_s=0.2, body_s=0.2).count(b"HTTP/1.1 204") == 2


def test_a_kept_connection_is_kept_as_long_as_said() -> None:
    async def talk() -> bytes:
        async with listening(application, idle_s=60, head_s=0.2) as server:
            client = await server.open(HEAD + b"abcd")
            await asyncio.sleep(1.5)
            client.writer.write(HEAD + b"abcd")
            return await client.reader.readexactly(2 * len(b"HTTP/1.1 204 No Content\r\n"))

    assert run(talk()).count(b"HTTP/1.1 204")


@pytest.mark.parametrize("begun", [b"", b'{"agent_'])
def test_a_body_that_does_not_come_is_answered_by_the_application(begun: bytes) -> None:
    async def talk() -> bytes:
        app = create_app(Database("sqlite:///nowhere"), body_s=0.3)
        async with listening(app) as server:
            return await (await server.open(STRANGER % 100 + begun)).heard()

    status, code, headers = problem(run(talk()))
    assert (status, code, headers["connection"]) == (408, "request.timeout", "close")
    assert headers["x-request-id"] != "-"


def test_a_watcher_that_is_silent_after_its_request_is_not_late() -> None:
    async def talk() -> bytes:
        app = create_app(Database("sqlite:///nowhere"), body_s=0.1)
        async with listening(app, idle_s=1) as server:
            client = await server.open(b"GET /v1/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            return await client.heard()

    assert run(talk()).startswith(b"HTTP/1.1 200")


def test_bodies_that_are_too_much_together_are_refused_and_room_comes_back() -> None:
    async def talk() -> tuple[bytes, bytes]:
        bodies = Bodies(1000 * STRANGERS_PART * ADDRESS_PART)
        app = create_app(Database("sqlite:///nowhere"), bodies=bodies)
        async with listening(app, idle_s=1) as server:
            first = await server.open(STRANGER % 700, b"[" * 300, b"[" * 300)
            second = await server.open(STRANGER % 500, b"[" * 500)
            refused = await second.heard()
            first.writer.transport.abort()
            await server.empty()
            third = await server.open(STRANGER % 900, b"[" * 900)
            return refused, await third.heard()

    refused, taken = run(talk())
    status, code, headers = problem(refused)
    assert (status, code, headers["retry-after"]) == (503, "api.full", "1")
    assert problem(taken)[0] == 400


def test_bodies_of_strangers_keep_out_neither_those_of_other_addresses_nor_who_is_known(database: Database) -> None:
    wanted = TokenCreate(role=TokenRole.OPERATOR)
    made = database.run(lambda session: tokens.create_token(session, local_operator("tests"), wanted))

    async def talk() -> tuple[list[bytes], bytes, bytes]:
        app = create_app(database, bodies=Bodies(1000 * STRANGERS_PART * ADDRESS_PART))
        async with listening(app, idle_s=1) as server:
            slow, refused = [], []
            for number in range(ADDRESS_PART):
                source = f"127.0.0.{2 + number}"
                slow.append(await server.open(STRANGER % 1001, b"[" * 1000, source=source))
                refused.append(await (await server.open(STRANGER % 2, b"[", source=source)).heard())
            late = await (await server.open(STRANGER % 2, b"[", source="127.0.0.9")).heard()
            known = await server.open(TENANT % made.secret.encode(), b'{"name": "acme"}', source="127.0.0.2")
            answer = await known.reader.readline()
            for each in (*slow, known):
                each.writer.transport.abort()
            await server.empty()
            return refused, late, answer

    refused, late, answer = run(talk())
    assert {problem(each)[:2] for each in (*refused, late)} == {(503, "api.full")}
    assert answer.startswith(b"HTTP/1.1 201")


def test_a_stranger_of_ipv6_is_its_network() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::2%eth0") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:192.0.2.1") == "192.0.2.1"


def test_what_is_given_back_can_be_taken_again() -> None:
    bodies = Bodies(10)
    bodies.take(10)
    with pytest.raises(Refusal):
        bodies.take(1)
    bodies.give(10)
    bodies.take(10)


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The TLS contexts of a server and of its client."""
    make_certificate(tmp_path)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tmp_path / "crt.pem", tmp_path / "key.pem")
    return server, ssl.create_default_context(cafile=tmp_path / "crt.pem")


@pytest.mark.parametrize("encrypted", [False, True])
def test_who_does_not_take_its_answer_is_cut_off(
    encrypted: bool, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    ours, theirs = contexts if encrypted else (None, None)

    async def talk() -> float:
        async with listening(generous, tls=ours, take_s=0.5) as server:
            client = await server.open(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", tls=theirs)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # of the connection
            begun_s = time.monotonic()
            await server.empty()
            return time.monotonic() - begun_s

    assert run(talk()) < 20


@pytest.mark.parametrize("encrypted", [False, True])
def test_who_takes_its_answer_gets_all_of_it(encrypted: bool, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    ours, theirs = contexts if encrypted else (None, None)

    async def talk() -> int:
        async with listening(generous, tls=ours, idle_s=1) as server:
            client = await server.open(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", tls=theirs)
            await client.reader.readuntil(b"\r\n\r\n")
            got = 0
            while got < LARGE:
                got += len(await client.reader.read(1 << 20))
            return got

    assert run(talk()) >= LARGE


def test_an_answer_may_go_on_for_longer_than_one_piece_of_it() -> None:
    async def talk() -> int:
        async with listening(endless, take_s=2, idle_s=1) as server:
            client = await server.open(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            got = 0
            while piece := await client.reader.read(1 << 20):
                got += len(piece)
            return got

    assert run(talk()) > PIECES * LARGE


def test_who_does_not_answer_the_end_of_tls_is_cut_off(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async def talk() -> float:
        async with listening(application, tls=contexts[0], handshake_s=1, idle_s=1) as server:
            client = await server.open(HEAD + b"abcd", tls=contexts[1])
            assert await client.reader.readline() == b"HTTP/1.1 204 No Content\r\n"
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # of the connection
            begun_s = time.monotonic()
            await server.empty()
            return time.monotonic() - begun_s

    assert run(talk()) < 20


def test_a_silent_connection_takes_little_memory(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """The figure includes both ends, because both are in this process."""

    async def talk() -> int:
        async with listening(application, tls=contexts[0], idle_s=60, head_s=60) as server:
            await server.open(tls=contexts[1])
            before_bytes, _ = tracemalloc.get_traced_memory()
            talks = [await server.open(tls=contexts[1]) for _ in range(10)]
            after_bytes, _ = tracemalloc.get_traced_memory()
            for each in talks:
                each.writer.transport.abort()
            return (after_bytes - before_bytes) // len(talks)

    tracemalloc.start()
    try:
        assert run(talk()) < 4 * protocol.TLS_BUFFER_BYTES
    finally:
        tracemalloc.stop()


def test_who_does_not_finish_the_handshake_is_cut_off(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async def talk() -> float:
        async with listening(application, tls=contexts[0], handshake_s=0.5) as server:
            silent = await server.open()
            stuck = await server.open(b"\x16\x03\x01\x02\x00\x01\x00")
            begun_s = time.monotonic()
            assert await silent.heard() == await stuck.heard() == b""
            await server.empty()
            return time.monotonic() - begun_s

    assert run(talk()) < 20
