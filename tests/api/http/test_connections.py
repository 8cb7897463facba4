# SPDX-License-Identifier: Apache-2.0
"""The number of connections is limited in total and per address; one connection too many gets an answer that says
so.
"""

import asyncio
import resource
import socket
import tracemalloc
from pathlib import Path
from typing import Any

import httpx2
import pytest
from vgpumgr_api.app import create_app
from vgpumgr_api.db.database import Database
from vgpumgr_api.overload import connections as connections_module
from vgpumgr_api.overload.connections import OTHER_FILES, REFUSING, Connections, address_of, room_for

from tests.api.http.listening import Listening, Talk, listening, problem, run
from tests.api.http.process import serving
from tests.api.http.tls import TLS, make_certificate
from vgpumgr.client import Client

ASK = b"GET /v1/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


def app() -> Any:
    return create_app(Database("sqlite:///nowhere"))


async def several(server: Listening, count: int, source: str = "127.0.0.1") -> list[Talk]:
    """Opens connections and sends nothing on them."""
    made = [await server.open(source=source) for _ in range(count)]
    while len(server.connections) < count:
        await asyncio.sleep(0.01)
    return made


def test_one_too_many_from_an_address_is_told_so_and_no_other_address() -> None:
    async def talk() -> None:
        async with listening(app(), per_address=3, idle_s=1) as server:
            first, *_ = await several(server, 3)
            status, code, headers = problem(await (await server.open(ASK)).heard())
            assert (status, code, headers["connection"]) == (429, "rate.exceeded", "close")
            assert int(headers["retry-after"]) > 0
            assert [(each.status, each.code) for each in server.noted] == [(429, "rate.exceeded")]
            assert (await (await server.open(ASK, source="127.0.0.2")).heard()).startswith(b"HTTP/1.1 200")
            first.writer.close()
            while len(server.connections) > 2:
                await asyncio.sleep(0.01)
            assert (await (await server.open(ASK)).heard()).startswith(b"HTTP/1.1 200")

    run(talk())


def test_one_too_many_in_all_is_told_so_until_there_is_no_room_for_that_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections_module, "REFUSING", 2)

    async def talk() -> None:
        async with listening(app(), total=16, per_address=8, head_s=2) as server:
            held = [await several(server, 8, f"127.0.0.{last}") for last in (1, 2)]
            status, code, headers = problem(await (await server.open(ASK, source="127.0.0.3")).heard())
            assert (status, code) == (503, "api.full")
            assert int(headers["retry-after"]) > 0
            held += [await several(server, 2, "127.0.0.3")]
            while len(server.connections) < 18:
                await asyncio.sleep(0.01)
            with pytest.raises(ConnectionResetError):  # an orderly close would keep state on our side for a minute
                await (await server.open(source="127.0.0.3")).reader.read()
            assert server.connections.reset == 1
            for each in (talk for those in held for talk in those):
                each.writer.close()
            await server.empty()
            assert (await (await server.open(ASK)).heard()).startswith(b"HTTP/1.1 200")

    run(talk())


def test_every_end_of_a_connection_is_counted() -> None:
    async def talk() -> None:
        async with listening(app(), head_s=0.3, idle_s=1) as server:
            for said in ((), (ASK,), (b"GET",), (b"\0\0\r\n\r\n",)):
                await (await server.open(*said)).heard()
                aborted = await server.open(*said)
                aborted.writer.transport.abort()
            await server.empty()

    run(talk())


@pytest.mark.parametrize(
    ("family", "peer", "counted"),
    [
        (socket.AF_INET, ("192.0.2.7", 1), "192.0.2.7"),
        (socket.AF_INET6, ("2001:db8::1:2", 1, 0, 0), "2001:db8::/64"),
        (socket.AF_INET6, ("::ffff:192.0.2.7", 1, 0, 0), "192.0.2.7"),
        (socket.AF_INET6, ("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        (socket.AF_UNIX, "", ""),
    ],
)
def test_whom_a_connection_counts_for(family: int, peer: Any, counted: str) -> None:
    assert address_of(family, peer) == counted


def test_connections_without_an_address_are_not_told_apart() -> None:
    counted = Connections(total=16, per_address=1)
    for descriptor in range(16):
        assert counted.enter(descriptor, "")
        assert counted.refusal(descriptor) is None
    assert counted.enter(16, "")
    assert counted.refusal(16) is not None


def test_an_address_whose_connections_have_ended_is_forgotten() -> None:
    counted = Connections(total=16, per_address=2)
    tracemalloc.start()
    try:
        for last in range(20_000):
            assert counted.enter(7, f"2001:db8:{last:x}::/64")
            counted.leave(7, f"2001:db8:{last:x}::/64")
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(counted) == 0
    assert kept_bytes < 100_000


@pytest.mark.parametrize(
    ("soft", "hard", "total", "fits", "raised"),
    [
        (20_000, 20_000, 12_000, 12_000, 20_000),
        (1024, 20_000, 12_000, 12_000, 12_000 + REFUSING + OTHER_FILES),
        (1024, 4096, 12_000, 4096 - REFUSING - OTHER_FILES, 4096),
        (256, 256, 12_000, 1, 256),
    ],
)
def test_there_is_room_for_as_many_as_files_may_be_open(
    soft: int, hard: int, total: int, fits: int, raised: int, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    assert room_for(total) == fits
    assert limits[-1] == (raised, hard)
    assert [f"leaves room for {fits}" in record.getMessage() for record in caplog.records] == [True] * (fits < total)


def test_a_served_api_does_as_its_settings_say_and_a_client_sees_only_a_pause(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    settings: dict[str, str | int] = {"connections.per_address": 2, "connections.handshake_s": 8}
    with serving(tmp_path, **(TLS | settings)) as server:
        url = httpx2.URL(server.url)
        first = socket.create_connection((url.host, url.port), timeout=60)
        second = socket.create_connection((url.host, url.port), timeout=60)
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            assert first.recv(1) == second.recv(1) == b"", "the handshake has a deadline"

        with Client(server.url, server.token, ca_file=tmp_path / "crt.pem", sleep=pause) as client:
            assert list(client.tenants()) == []
        assert len(pauses) == 1
        assert pauses[0] >= 5, "as Retry-After says"
        first.close()
        second.close()
