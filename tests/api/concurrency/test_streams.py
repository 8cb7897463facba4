# SPDX-License-Identifier: Apache-2.0
"""Watchers of two replicas that are repeatedly killed get each event once and in order."""

import random
import threading
import time
from pathlib import Path
from uuid import uuid4

import pytest
from vgpumgr_api.actors import local_operator
from vgpumgr_api.db.database import Database
from vgpumgr_api.events import events

from tests.api.concurrency.audit import Audit
from tests.api.concurrency.deployment import DEADLINE_S, Deployment, deployed
from tests.api.concurrency.streams import StreamWatcher

WRITERS = 2


class Writing:
    """Threads that make tenants, and one thread whose transactions stay open for a long time."""

    def __init__(self, deployment: Deployment, seed: int) -> None:
        self._deployment = deployment
        self._stopping = threading.Event()
        self._failures: list[str] = []
        work = [*[(self._write, seed + number) for number in range(WRITERS)], (self._linger, seed)]
        self._threads = [threading.Thread(target=self._guarded, args=each) for each in work]
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        self._stopping.set()
        for each in self._threads:
            each.join()
        assert self._failures == []

    def _guarded(self, work: object, seed: int) -> None:
        try:
            work(seed)  # type: ignore[operator]
        except Exception as error:
            self._failures.append(repr(error))

    def _write(self, seed: int) -> None:
        caller = self._deployment.caller(seed=seed)
        while not self._stopping.wait(0.02):
            name = f"t-{uuid4().hex[:12]}"
            account = random.Random(seed).choice([None, "acme"])
            made = caller.ask("POST", "/v1/tenants", {"name": name, "account": account}, key=name)
            assert made.status in (201, 409), made
            seed += 1

    def _linger(self, seed: int) -> None:
        rng = random.Random(seed)
        database = Database(self._deployment.url)

        def late(session: object) -> None:
            events.record(session, local_operator("late"), "tenant.late", str(uuid4()))  # type: ignore[arg-type]
            session.flush()  # type: ignore[attr-defined]
            self._stopping.wait(rng.uniform(0.5, 3))

        while not self._stopping.is_set():
            database.run(late)
        database.close()


def watch_through(deployment: Deployment, *, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    caller = deployment.caller(seed=seed)
    for name in ("acme", "blue"):
        assert caller.ask("POST", "/v1/tenants", {"name": name}, key=name).status == 201
    own = caller.ask("POST", "/v1/tokens", {"role": "tenant", "subject": "acme"}).body["secret"]
    watchers = {
        "all": StreamWatcher(deployment, "all", seed=seed),
        "own": StreamWatcher(deployment, "own", token=own, seed=seed + 1),
        "tokens": StreamWatcher(deployment, "tokens", query="&about=token", seed=seed + 2),
    }
    for each in watchers.values():
        each.start()
    for each in watchers.values():
        assert each.connected.wait(DEADLINE_S)
    writing = Writing(deployment, seed)
    for kill in range(kills):
        time.sleep(rng.uniform(0.2, 1.5))
        replica = deployment.replicas[kill % len(deployment.replicas)]
        replica.kill()
        time.sleep(rng.uniform(0, 0.5))
        replica.start()
    writing.stop()
    # A reader numbers the remaining events; the event of the token that is made here is the last one.
    assert caller.ask("POST", "/v1/tenants", {"name": "late", "account": "acme"}, key="late").status == 201
    assert caller.ask("POST", "/v1/tokens", {"role": "viewer"}).status == 201
    while (page := caller.ask("GET", "/v1/events?page_size=1000&after=0&about=token").body)["next_page_token"]:
        pass
    last = page["items"][-1]["seq"]
    log = Audit(deployment.url).ask("SELECT seq, kind, tenant FROM events WHERE seq IS NOT NULL ORDER BY seq")
    reach = {
        name
        for (name,) in Audit(deployment.url).ask(
            "SELECT t.name FROM tenants t LEFT JOIN tenants a ON a.id = t.account_id WHERE 'acme' IN (t.name, a.name)"
        )
    }
    expected = {
        "all": [seq for seq, _, _ in log],
        "own": [seq for seq, _, tenant in log if tenant in reach],
        "tokens": [seq for seq, kind, _ in log if kind.startswith("token.")],
    }
    told = {name: each.finish(expected[name][-1]) for name, each in watchers.items()}
    assert len(log) > kills
    assert told == expected
    assert told["all"] == list(range(1, last + 1))
    assert len(told["own"]) > 1
    assert min(each.connections for each in watchers.values()) > 1
    assert deployment.server_errors() == []


def test_each_event_once_and_in_order_while_replicas_are_killed(postgresql_url: str, tmp_path: Path, seed: int) -> None:
    with deployed(tmp_path, postgresql_url, replicas=2) as deployment:
        watch_through(deployment, kills=3, seed=seed)


@pytest.mark.long
def test_the_same_for_long(postgresql_url: str, tmp_path: Path, seed: int) -> None:
    with deployed(tmp_path, postgresql_url, replicas=2) as deployment:
        watch_through(deployment, kills=40, seed=seed)
