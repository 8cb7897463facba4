# SPDX-License-Identifier: Apache-2.0
"""A host's meter whose messages arrive twice, late, truncated and several at once, at any replica.

The ledger is compared with what this meter counted.
"""

import random
import threading
import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from tests.api.concurrency.deployment import Caller

COUNTED = ("run_ns", "due_ns", "assured_ns", "throttled_ns", "reserved_ns")
MOST_NS = 10**6
"""The most by which a count grows: far below what a GPU can do in an hour, however long a test takes."""


class Meter:
    """Counts for groups on the GPUs of one host; threads share it.

    A group belongs to a tenant on a GPU. `acknowledged`: the newest revision that the ledger is known to have.
    """

    def __init__(self, host: str, groups: list[tuple[str, str]], seed: int) -> None:
        self.host = host
        self.acknowledged = 0
        self._groups = groups
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._id = str(uuid4())
        self._newest = 0
        self._counts: dict[tuple[int, str, str], dict[str, int]] = {}
        self._before: list[dict[str, Any]] = []

    def grow(self) -> None:
        """Some group works in this hour, or in the hour before that the meter has not reported yet."""
        with self._lock:
            hour = int(time.time()) // 3600 - self._rng.choice((0, 0, 1))
            gpu, tenant = self._rng.choice(self._groups)
            counts = self._counts.setdefault((hour, gpu, tenant), dict.fromkeys(COUNTED, 0) | {"revision": 0})
            self._newest += 1
            counts["revision"] = self._newest
            for name in COUNTED:
                counts[name] += self._rng.randint(-MOST_NS if name == "due_ns" else 0, MOST_NS)

    def message(self) -> dict[str, Any]:
        """Returns a message like an agent would send now: often with more than is needed, or with only a part."""
        with self._lock:
            after = self._rng.choice((self.acknowledged, self.acknowledged, self._rng.randint(0, self.acknowledged)))
            through = self._rng.choice((self._newest, self._newest, self._rng.randint(after, self._newest)))
            readings = [
                {"hour": hour, "gpu": gpu, "tenant": tenant, **counts}
                for (hour, gpu, tenant), counts in self._counts.items()
                if after < counts["revision"] <= through
            ]
            said = {"meter_id": self._id, "after": after, "through": through, "newest": self._newest}
            return said | {"readings": readings}

    def tell(self, caller: Caller, message: Mapping[str, Any]) -> None:
        """Sends the message until it is answered.

        A message that later ones have overtaken looks like a meter that was set back. An agent sends its messages one
        by one, so it would no longer wait for that answer.
        """
        reply = caller.ask("POST", f"/v1/hosts/{self.host}/usage", message)
        assert reply.status == 200, reply.body
        with self._lock:
            assert not reply.body["restart"] or message["newest"] < self._newest, reply.body
            self.acknowledged = max(self.acknowledged, reply.body["revision"])

    def finish(self, caller: Caller) -> None:
        """Reports everything that is left."""
        while self.acknowledged < self._newest:
            self.tell(caller, self.message())

    def begin_anew(self) -> None:
        """The meter's disk was lost after everything was reported: the next meter counts from zero under another id."""
        with self._lock:
            assert self.acknowledged == self._newest
            self._before += self._rows()
            self._id, self._newest, self.acknowledged = str(uuid4()), 0, 0
            self._counts.clear()

    def truth(self) -> dict[str, dict[str, int]]:
        """The totals of each tenant's groups."""
        sums: dict[str, dict[str, int]] = {}
        for row in (*self._before, *self._rows()):
            of = sums.setdefault(row["tenant"], dict.fromkeys(COUNTED, 0))
            for name in COUNTED:
                of[name] += row[name]
        return sums

    def _rows(self) -> list[dict[str, Any]]:
        return [{"tenant": tenant, **counts} for (_, _, tenant), counts in self._counts.items()]


class Teller(threading.Thread):
    """Reports a meter until `calm`. Several tellers of one meter do not know of each other's messages under way.

    `late`: its last messages, for sending again. `trouble`: the error that stopped it.
    """

    def __init__(self, meter: Meter, caller: Caller, calm: threading.Event, seed: int) -> None:
        super().__init__(daemon=True)
        self.told = 0
        self.late: list[dict[str, Any]] = []
        self.trouble: Exception | None = None
        self._meter, self._caller, self._calm = meter, caller, calm
        self._rng = random.Random(seed)

    def run(self) -> None:
        try:
            while not self._calm.is_set():
                for _ in range(self._rng.randint(1, 5)):
                    self._meter.grow()
                message = self._meter.message()
                self.late = [*self.late[-8:], message]
                if self._rng.random() < 0.2:
                    self._caller.shout("POST", f"/v1/hosts/{self._meter.host}/usage", message, key="")
                if self._rng.random() < 0.9:
                    self._meter.tell(self._caller, message)
                if self._rng.random() < 0.4:
                    self._meter.tell(self._caller, self._rng.choice(self.late))
                self.told += 1
        except Exception as error:
            self.trouble = error
        finally:
            self._caller.close()
