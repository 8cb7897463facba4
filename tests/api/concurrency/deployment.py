# SPDX-License-Identifier: Apache-2.0
"""Replicas of ``vgpumgr-api serve`` on one database, over loopback; they can be killed and restarted."""

import contextlib
import http.client
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from vgpumgr_api.admin import create_token
from vgpumgr_api.db.database import Database
from vgpumgr_api.overload.connection_settings import ConnectionSettings

from tests.api.forked import Forked
from tests.api.http.process import START_S, settings_file
from vgpumgr.wire.resources import TokenCreate, TokenRole

DEADLINE_S = 120
"""How long a client repeats a request; longer than any outage in these tests."""
FRESH_S = ConnectionSettings().idle_s / 2
"""For this long after its last request, a connection is assumed to be open."""
_SEEDS = count(1)


class Replica:
    """One API process. Each start listens on a port that the kernel chooses; `address` is None while it is down."""

    def __init__(self, directory: Path, database_url: str, settings: Mapping[str, int]) -> None:
        directory.mkdir()
        self.address: tuple[str, int] | None = None
        self.log = directory / "api.log"
        self._settings = settings_file(directory, database=database_url, **settings)
        self._process: Forked | None = None

    def start(self) -> None:
        """Returns once the process listens."""
        begin = self.log.stat().st_size if self.log.exists() else 0
        self._process = process = Forked(["serve", "--config", self._settings], errors=self.log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            said = self.log.read_bytes()[begin:].decode(errors="replace")
            if found := re.search(r"listening on http://([0-9.]+):([0-9]+)$", said, re.M):
                self.address = (found[1], int(found[2]))
                return
            assert process.poll() is None, said
            time.sleep(0.02)
        raise AssertionError(f"not listening after {START_S} s: {self.log.read_text()}")

    def kill(self) -> None:
        """Sends SIGKILL: the process finishes nothing and reports nothing."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self.address = self._process = None

    def tracebacks(self) -> int:
        """Returns how often its log, over all its starts, mentions an internal error."""
        return self.log.read_text(errors="replace").count(" vgpumgr_api.edge.envelope: ")


@dataclass
class Deployment:
    """`token`: the token of an operator."""

    url: str
    token: str
    replicas: list[Replica]
    tally: Counter[str] = field(default_factory=Counter)
    _clients: "list[Caller]" = field(default_factory=list)

    def caller(self, token: str | None = None, *, seed: int = 0) -> "Caller":
        """A client for one thread."""
        return Caller(self, token or self.token, random.Random(seed))

    def take_client(self, token: str) -> "Caller":
        """Returns a connected client that no other thread uses until it is given back."""
        if self._clients:
            client = self._clients.pop()
            client.token = token
            return client
        client = self.caller(token, seed=next(_SEEDS))
        client.ask("GET", "/")
        return client

    def give_back(self, client: "Caller") -> None:
        self._clients.append(client)

    def server_errors(self) -> list[str]:
        """Returns the internal errors that replicas logged; no client should be able to cause one."""
        return [f"{replica.log}: {count} unexpected" for replica in self.replicas if (count := replica.tracebacks())]


@contextlib.contextmanager
def deployed(directory: Path, database_url: str, *, replicas: int, **settings: int) -> Iterator[Deployment]:
    """Starts the replicas with these settings; kills them when the block ends."""
    database = Database(database_url)
    token = create_token(database, TokenCreate(role=TokenRole.OPERATOR)).secret
    database.close()
    all_of_them = [Replica(directory / f"replica-{number}", database_url, settings) for number in range(replicas)]
    try:
        starting = [threading.Thread(target=replica.start) for replica in all_of_them]
        for each in starting:
            each.start()
        for each in starting:
            each.join()
        assert all(replica.address for replica in all_of_them), "a replica did not start"
        yield Deployment(database_url, token, all_of_them)
    finally:
        for replica in all_of_them:
            replica.kill()


@dataclass(frozen=True)
class Reply:
    """`repeated`: an earlier attempt may also have been carried out."""

    status: int
    body: Any
    headers: Mapping[str, str]
    repeated: bool

    @property
    def code(self) -> str:
        """The problem's code; "" on success."""
        return str(self.body["code"]) if self.status >= 400 else ""


class Caller:
    """Sends each request to any replica and repeats it until there is an answer; belongs to one thread.

    Each repetition sends the same content, including the idempotency key.
    """

    def __init__(self, deployment: Deployment, token: str, rng: random.Random) -> None:
        self.deployment = deployment
        self.token = token
        self._rng = rng
        self._connections: dict[tuple[str, int], http.client.HTTPConnection] = {}
        self._used_s: dict[tuple[str, int], float] = {}

    def ask(self, method: str, path: str, body: object = None, *, key: str = "", if_match: int | None = None) -> Reply:
        """Returns the first answer that is not a 503."""
        deadline = time.monotonic() + DEADLINE_S
        headers, content = self._message(body, key=key, if_match=if_match)
        repeated = False
        while time.monotonic() < deadline:
            sent = False
            try:
                connection = self._connection()
                connection.connect() if connection.sock is None else None
                sent = True
                connection.request(method, path, body=content, headers=headers)
                answer = connection.getresponse()
                data = answer.read()
            except (OSError, http.client.HTTPException):
                self.close()
                repeated |= sent
                self.deployment.tally["lost" if sent else "refused"] += 1
            else:
                if answer.status != 503:
                    said = json.loads(data) if data else None
                    return Reply(answer.status, said, dict(answer.headers), repeated)
                assert json.loads(data)["code"] == "database.busy", data
                repeated = True
                self.deployment.tally["busy"] += 1
            time.sleep(self._rng.uniform(0.05, 0.3))
        raise AssertionError(f"{method} {path}: no answer in {DEADLINE_S} s")

    def shout(self, method: str, path: str, body: object, *, key: str) -> None:
        """Sends a request and hangs up before the answer, like an impatient client."""
        headers, content = self._message(body, key=key, if_match=None)
        with contextlib.suppress(OSError):
            connection = self._connection()
            connection.request(method, path, body=content, headers=headers)
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._used_s.clear()

    def _connection(self) -> http.client.HTTPConnection:
        up = [replica.address for replica in self.deployment.replicas if replica.address is not None]
        if not up:
            raise ConnectionRefusedError
        address, now_s = self._rng.choice(up), time.monotonic()
        if now_s - self._used_s.get(address, now_s) > FRESH_S:
            self._connections.pop(address).close()
        self._used_s[address] = now_s
        if address not in self._connections:
            self._connections[address] = http.client.HTTPConnection(*address, timeout=60)
        return self._connections[address]

    def _message(self, body: object, *, key: str, if_match: int | None) -> tuple[dict[str, str], bytes | None]:
        headers = {"Authorization": f"Bearer {self.token}"}
        if key:
            headers["Idempotency-Key"] = key
        if if_match is not None:
            headers["If-Match"] = f'"{if_match}"'
        if body is None:
            return headers, None
        headers["Content-Type"] = "application/json"
        return headers, json.dumps(body).encode()
