# SPDX-License-Identifier: Apache-2.0
"""Random input from programs, children and operators at a broker with sanitizers, which survives and serves others."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compute.broker_rig import (
    CLIENT_MESSAGE,
    DONE,
    EXITED,
    KILL,
    LIMIT_S,
    START,
    STREAM_REQUEST,
    SUPERVISOR_MESSAGE,
    Broker,
    Child,
    Supervisor,
    build_fake_supervisor,
    make_broker,
    receive,
    tenant,
)
from vgpumgr.errors import BrokerRefusedError

WORDS = (0, 1, 2, 3, 4, 7, 8, 255, 2**31, 2**32 - 1)
LONG = (0, 1, 2, 2**32, 2**63, 2**64 - 1)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_broker(sanitized=True), build_fake_supervisor(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def broker(tmp_path: Path, programs: tuple[Path, Path]) -> Iterator[Broker]:
    with Broker(tmp_path, *programs, tenants=[tenant("blue", max_processes=64)]) as running:
        yield running
    assert "Sanitizer" not in running.log()
    assert "runtime error" not in running.log()


def some_bytes(numbers: random.Random) -> bytes:
    return numbers.randbytes(numbers.choice((1, 31, 32, 33, 216, 217, 248, 4096)))


def greeting(numbers: random.Random) -> bytes:
    if numbers.random() < 0.3:
        return some_bytes(numbers)
    return CLIENT_MESSAGE.pack(
        numbers.choice((1, 1, 1, 2)),
        numbers.choice((1, 1, 1, *WORDS)),
        0,
        0,
        numbers.choice(LONG),
        numbers.randbytes(192),
    )


def request(numbers: random.Random) -> bytes:
    if numbers.random() < 0.1:
        return some_bytes(numbers)
    return STREAM_REQUEST.pack(
        numbers.choice((1, 2, 2, *WORDS)),
        numbers.choice((0, 0, 1, *WORDS)),
        numbers.choice((1, 2, *LONG)),
        numbers.choice(WORDS),
        numbers.choice((0, 0, 0, 1)),
        numbers.choice(LONG),
    )


def mangled(numbers: random.Random, document: Any) -> bytes:
    """Return the document with a few changed bytes or one changed value."""
    text = bytearray(json.dumps(document).encode())
    for _ in range(numbers.randrange(1, 4)):
        at = numbers.randrange(len(text))
        if numbers.random() < 0.5:
            text[at : at + numbers.randrange(1, 9)] = numbers.choice(
                (b"", b"null", b"18446744073709551616", b'"', b"[{")
            )
        else:
            text[at] = numbers.randrange(256)
    return bytes(text).replace(b"\n", b" ")


def send(connection: socket.socket, data: bytes, numbers: random.Random) -> None:
    try:
        if numbers.random() < 0.2:
            socket.send_fds(connection, [data], [connection.fileno()] * numbers.randrange(1, 8))
        else:
            connection.send(data)
    except (BrokenPipeError, ConnectionResetError, BlockingIOError):
        pass


def settle(supervisor: Supervisor, numbers: random.Random) -> None:
    """Receive the broker's requests to the supervisor and answer them correctly."""
    supervisor.socket.setblocking(False)
    try:
        while True:
            data, fds = receive(supervisor.socket, 4096)
            if not data:
                return
            _, op, sequence, child, *_ = SUPERVISOR_MESSAGE.unpack(data)
            supervisor.send(DONE, sequence=sequence)
            if op == START:
                babble(Child(child, sequence, 0, 0, fds), numbers)
            elif op == KILL:
                supervisor.send(EXITED, child=child, status=9)
    except BlockingIOError:
        pass
    finally:
        supervisor.socket.settimeout(LIMIT_S)


def babble(child: Child, numbers: random.Random) -> None:
    child.socket.setblocking(False)
    for _ in range(numbers.randrange(30)):
        child.stream_page.memory[:24] = numbers.randbytes(24)
        send(child.socket, request(numbers), numbers)
    child.close()
    for page in (child.window, child.lease_page, child.stream_page):
        page.memory.close()
        os.close(page.fd)


def restore(broker: Broker, old: Supervisor) -> Supervisor:
    """Add the tenant again after its old supervisor has ended."""
    old.kill()
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            broker.control.set(broker.settings(), generation=0)
            break
        except BrokerRefusedError as error:
            if error.code != "object.in_use" or time.monotonic() > end:
                raise
            time.sleep(0.01)
    while True:
        found = broker.any_supervisor()
        if found.tenant == "blue":
            return found
        found.kill()


def play(broker: Broker, seed: int, rounds: int) -> None:
    numbers = random.Random(seed)
    supervisor = broker.any_supervisor()
    for _ in range(rounds):
        if not (broker.run / "blue.sock").exists():  # a mangled configuration had replaced the tenant
            supervisor = restore(broker, supervisor)
        program = broker.connect("blue")
        for _ in range(numbers.randrange(1, 3)):
            send(program.socket, greeting(numbers), numbers)
        settle(supervisor, numbers)
        program.close()
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(LIMIT_S)
            control.connect(str(broker.run / "control"))
            wanted = {"op": "set", "generation": 0, "settings": broker.settings()}
            control.sendall(mangled(numbers, wanted) + b"\n")
            json.loads(control.makefile(errors="replace").readline())


@pytest.mark.parametrize("seed", range(2))
def test_a_broker_survives_whatever_is_said_to_it(broker: Broker, seed: int) -> None:
    play(broker, seed, 400)
    assert broker.process.poll() is None


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 120))
def test_a_broker_survives_whatever_is_said_to_it_for_long(broker: Broker, seed: int) -> None:
    play(broker, seed, 1500)
    assert broker.process.poll() is None
