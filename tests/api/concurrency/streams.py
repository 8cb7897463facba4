# SPDX-License-Identifier: Apache-2.0
"""A client of the event stream that reconnects to any replica whenever its connection ends."""

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

from tests.api.concurrency.deployment import DEADLINE_S, Deployment

SILENCE_S = 30


class StreamWatcher(threading.Thread):
    """Keeps received events in their order. `query`: the query of every request, without the position."""

    def __init__(
        self, deployment: Deployment, name: str, *, token: str | None = None, query: str = "", seed: int = 0
    ) -> None:
        super().__init__(name=f"stream-{name}", daemon=True)
        self.seen: list[dict[str, Any]] = []
        self.connections = 0
        self.connected = threading.Event()
        self.complaints: list[str] = []
        self._deployment = deployment
        self._token = token or deployment.token
        self._query = query
        self._rng = random.Random(seed)
        self._position = ""
        self._end: int | None = None

    def run(self) -> None:
        try:
            while not self._done():
                try:
                    self._connect()
                except (OSError, http.client.HTTPException):
                    time.sleep(self._rng.uniform(0.02, 0.2))
        except Exception as error:
            self.complaints.append(repr(error))

    def finish(self, last: int) -> list[int]:
        """Waits until every event up to `last` has arrived; returns all event numbers in the order of arrival."""
        self._end = last
        self.join(DEADLINE_S)
        assert not self.is_alive(), f"{self.name} is at {self._position}, not at {last}"
        assert self.complaints == []
        return [event["seq"] for event in self.seen]

    def _done(self) -> bool:
        return self._end is not None and int(self._position.rpartition("-")[2] or 0) >= self._end

    def _connect(self) -> None:
        up = [replica.address for replica in self._deployment.replicas if replica.address is not None]
        if not up:
            raise ConnectionRefusedError
        connection = http.client.HTTPConnection(*self._rng.choice(up), timeout=SILENCE_S)
        headers = {"Authorization": f"Bearer {self._token}"}
        if self._position:
            headers["Last-Event-ID"] = self._position
        try:
            connection.request("GET", f"/v1/events/watch?after=0{self._query}", headers=headers)
            answer = connection.getresponse()
            if answer.status == 503:
                raise ConnectionRefusedError
            assert answer.status == 200, answer.read()
            self.connections += 1
            self.connected.set()
            for block in _blocks(answer):
                assert block.get("event") != "problem" or json.loads(block["data"])["status"] == 503, block
                if "data" in block and "event" not in block:
                    self.seen.append(json.loads(block["data"]))
                self._position = block.get("id", self._position)
                if self._done():
                    return
        finally:
            connection.close()


def _blocks(answer: http.client.HTTPResponse) -> Iterator[dict[str, str]]:
    block: dict[str, str] = {}
    while line := answer.readline():
        text = line.decode().rstrip("\n")
        if text:
            name, _, value = text.partition(": ")
            block[name] = value
        elif block:
            yield block
            block = {}
