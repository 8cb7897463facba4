# SPDX-License-Identifier: Apache-2.0
"""The ledger of two replicas that are killed in turn records exactly what was granted and used.

Meters repeat messages and send several at once; claims are requested, deleted and confirmed absent twice. The played
meters know what was used. The events of each claim, read from the database, tell what was granted.
"""

import csv
import io
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.api.concurrency.deployment import Deployment, deployed
from tests.api.concurrency.races import GIB, Fleet, Host
from tests.api.concurrency.told import COUNTED, Meter, Teller

US = timedelta(microseconds=1)
SHARE, MEM_GIB = 7, 1
GRANTED = ("slice_us", "releasing_us", "granted_ns", "mem_byte_us")
TELLERS = 2
"""Tellers of each meter."""
MESSAGES, LIVES = 4, 1
"""Minimum numbers of messages of each teller and of ended claims of each tenant, before, between and after the
blows.
"""


class Tenant(threading.Thread):
    """Claims and deletes until `calm`, each request twice; also reports deleted slices absent twice, for the host."""

    def __init__(self, fleet: Fleet, name: str, profile: str, host: Host, calm: threading.Event, seed: int) -> None:
        super().__init__(daemon=True)
        self.trouble: Exception | None = None
        self.ended = 0
        self._caller = fleet.deployment.caller(seed=seed)
        self._agent = fleet.deployment.caller(host.token, seed=seed + 1)
        self._body = {"tenant": name, "profile": profile, "host": host.name}
        self._host, self._calm, self._rng = host, calm, random.Random(seed)

    def run(self) -> None:
        try:
            while not self._calm.is_set():
                self._live()
        except Exception as error:
            self.trouble = error

    def _live(self) -> None:
        key, body = str(uuid4()), self._body | {"vm_uuid": str(uuid4())}
        if self._rng.random() < 0.3:
            self._caller.shout("POST", "/v1/slices", body, key=key)
        made, again = (self._caller.ask("POST", "/v1/slices", body, key=key) for _ in range(2))
        assert (made.status, again.status) == (201, 201), (made, again)
        assert made.body["id"] == again.body["id"]
        for _ in range(2):
            assert self._caller.ask("DELETE", f"/v1/slices/{made.body['id']}").status == 202
        path = f"/v1/hosts/{self._host.name}"
        document = self._agent.ask("GET", f"{path}/desired").body
        report = self._host.report(document, absent=(made.body["id"],))
        for _ in range(2):
            assert self._agent.ask("POST", f"{path}/report", report).status == 200
        assert self._caller.ask("GET", f"/v1/slices/{made.body['id']}").status == 404
        self.ended += 1


def ledgers(deployment: Deployment, query: str) -> Iterator[list[dict[str, Any]]]:
    """The rows of each replica, from its list and from its CSV."""
    for replica in deployment.replicas:
        assert replica.address is not None
        for path in ("/v1/usage/ledger", "/v1/usage/ledger.csv"):
            connection = HTTPConnection(*replica.address, timeout=60)
            headers = {"Authorization": f"Bearer {deployment.token}"}
            connection.request("GET", f"{path}?{query}", headers=headers)
            yield parsed(connection.getresponse().read())
            connection.close()


def parsed(answer: bytes) -> list[dict[str, Any]]:
    if answer.startswith(b"{"):
        said = json.loads(answer)
        assert said["next_page_token"] == ""
        return list(said["items"])
    return list(csv.DictReader(io.StringIO(answer.decode())))


def totals(rows: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, dict[str, int]]:
    sums: dict[str, Counter[str]] = {}
    for row in rows:
        sums.setdefault(row["tenant"], Counter()).update({name: int(row[name]) for name in names})
    return {tenant: {name: of[name] for name in names} for tenant, of in sums.items()}


def granted(fleet: Fleet) -> dict[str, dict[str, int]]:
    """Computes what was granted from the events of each claim."""
    lives: dict[str, dict[str, Any]] = {}
    for object_, tenant, kind, at in fleet.audit.ask("SELECT object, tenant, kind, at FROM events ORDER BY id"):
        if kind.startswith("slice."):
            life = lives.setdefault(object_, {"tenant": tenant})
            assert kind not in life, f"{object_}: {kind} twice"
            life[kind] = at
    sums: dict[str, dict[str, int]] = {}
    for life in lives.values():
        lived = (life["slice.releasing"] - life["slice.claimed"]) // US
        gone = (life["slice.released"] - life["slice.releasing"]) // US
        of = sums.setdefault(life["tenant"], dict.fromkeys(GRANTED, 0))
        for name, more in zip(GRANTED, (lived, gone, lived * SHARE, lived * MEM_GIB * GIB), strict=True):
            of[name] += more
    return sums


def watched(workers: list[Teller | Tenant], done: list[int]) -> None:
    """Waits until each worker has made this much progress; fails with the error of a worker that stopped."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for each in workers:
            assert each.trouble is None, repr(each.trouble)
        if all(_done(each) >= before + _wanted(each) for each, before in zip(workers, done, strict=True)):
            return
        time.sleep(0.02)
    raise AssertionError("nothing goes on")


def _done(worker: Teller | Tenant) -> int:
    return worker.told if isinstance(worker, Teller) else worker.ended


def _wanted(worker: Teller | Tenant) -> int:
    return MESSAGES if isinstance(worker, Teller) else LIVES


def play(deployment: Deployment, *, kills: int, seed: int) -> None:
    fleet, rng = Fleet(deployment), random.Random(seed)
    began = datetime.now(UTC)
    tenants, profile = [fleet.tenant() for _ in range(2)], fleet.profile(share=SHARE, gib=MEM_GIB)
    hosts = [fleet.host(16) for _ in range(2)]
    for host in hosts:  # a tenant without any claim on a GPU cannot use it
        for tenant in tenants:
            claimed = fleet.claim(tenant, profile, host=host.name)
            assert fleet.operator.ask("DELETE", f"/v1/slices/{claimed['id']}").status == 202
        host.fulfil()
    groups = [(hosts[0].gpus[0]["address"], tenant) for tenant in tenants]
    meters = [Meter(host.name, groups, seed + number) for number, host in enumerate(hosts)]
    tokens = {host.name: host.token for host in hosts}

    def talking(calm: threading.Event) -> list[list[Teller]]:
        return [
            [
                Teller(meter, deployment.caller(tokens[meter.host], seed=rng.getrandbits(32)), calm, number)
                for number in range(TELLERS)
            ]
            for meter in meters
        ]

    def claiming(calm: threading.Event) -> list[Tenant]:
        return [
            Tenant(fleet, tenant, profile, host, calm, rng.getrandbits(32))
            for tenant, host in zip(tenants, hosts, strict=True)
        ]

    for blows in (kills, 0):
        calm = threading.Event()
        tellers = talking(calm)
        workers = [*(each for those in tellers for each in those), *claiming(calm)]
        for each in workers:
            each.start()
        for _ in range(blows):
            replica = rng.choice(deployment.replicas)
            watched(workers, [_done(each) for each in workers])
            replica.kill()
            watched(workers, [_done(each) for each in workers])
            replica.start()
        watched(workers, [_done(each) for each in workers])
        calm.set()
        for each in workers:
            each.join()
            assert each.trouble is None, repr(each.trouble)
        for number, meter in enumerate(meters):
            caller = deployment.caller(tokens[meter.host])
            meter.finish(caller)
            for message in (each for teller in tellers[number] for each in teller.late):
                meter.tell(caller, message)
            if blows:
                meter.begin_anew()

    used: dict[str, dict[str, int]] = {}
    for meter in meters:
        for tenant, counts in meter.truth().items():
            of = used.setdefault(tenant, dict.fromkeys(COUNTED, 0))
            for name in COUNTED:
                of[name] += counts[name]
    since = f"{began - timedelta(hours=2):%Y-%m-%dT%H:00:00Z}"
    until = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:00:00Z}"
    for query in ("granularity=total", "granularity=hour&by=gpu"):
        for rows in ledgers(deployment, f"since={since}&until={until}&{query}"):
            assert totals(rows, COUNTED) == used
            assert totals(rows, GRANTED) == granted(fleet)
    assert fleet.operator.ask("GET", "/v1/usage/unbooked").body["items"] == []
    assert fleet.operator.ask("GET", "/v1/slices").body["items"] == []
    assert fleet.audit.violations() == []
    assert deployment.server_errors() == []


def test_replicas_bill_what_was_granted_and_used_whatever_is_repeated_and_killed(
    postgresql_url: str, tmp_path: Path, seed: int
) -> None:
    with deployed(tmp_path, postgresql_url, replicas=2) as deployment:
        play(deployment, kills=1, seed=seed)


@pytest.mark.long
def test_the_same_for_long(postgresql_url: str, tmp_path: Path, seed: int) -> None:
    with deployed(tmp_path, postgresql_url, replicas=2) as deployment:
        play(deployment, kills=20, seed=seed)
