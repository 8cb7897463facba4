# SPDX-License-Identifier: Apache-2.0
"""64 clients claim and delete while hosts are fenced and API processes and PostgreSQL are killed.

Afterwards the test queries the database directly, checks what must hold, and compares it with what clients, hosts and
watchers received. The seed is printed, but the scheduling of threads is not repeatable.
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest

from tests.api.cluster import Cluster
from tests.api.concurrency import storm
from tests.api.concurrency.agents import Agent, enrolled, inventory
from tests.api.concurrency.audit import Audit
from tests.api.concurrency.deployment import Deployment, Replica, deployed
from tests.api.concurrency.storm import HOSTS, Ledger
from tests.api.concurrency.watcher import Watcher

ASKED_AGAIN = 40
SETTLE_S = 60
CLAIMS, DELETES = 96, 48
"""Minimum numbers of confirmed requests: a storm without traffic proves nothing."""

CROWDED = {"tenant_requests_at_once": 0}
"""No client of a tenant has to wait until the others of that tenant are done."""


@dataclass
class Storm:
    """A run: everybody works until `calm`."""

    deployment: Deployment
    seed: int
    ledger: Ledger = field(default_factory=Ledger)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        operator = self.deployment.caller()
        tokens = storm.set_up(operator)
        self.agents = [
            Agent(self.deployment, name, enrolled(operator, name), inventory(sizes), self.seed + number)
            for number, (name, sizes) in enumerate(HOSTS.items())
        ]
        self.watcher = Watcher(self.deployment, "operator")
        self.tenant_watcher = Watcher(self.deployment, "acme", token=tokens["acme"], page_size=7)
        self._clients = storm.clients(self.deployment, tokens, self.ledger, self._stop, self.seed)
        for each in (*self.agents, self.watcher, self.tenant_watcher):
            each.start()
        while len(operator.ask("GET", "/v1/gpus").body["items"]) < sum(len(sizes) for sizes in HOSTS.values()):
            time.sleep(0.05)
        for each in self._clients:
            each.start()

    def calm(self) -> None:
        """Lets every client and host finish: clients get their answers, hosts fulfil all tombstones."""
        self._stop.set()
        for each in self._clients:
            each.join()
        for agent in self.agents:
            agent.stopping.set()
        for agent in self.agents:
            agent.join(SETTLE_S)
            assert not agent.is_alive(), f"{agent.host} still has tombstones after {SETTLE_S} s"

    def still(self) -> None:
        """Waits for the requests of impatient clients that are still under way."""
        for replica in self.deployment.replicas:
            replica.kill()
        self.deployment.replicas[0].start()


def rage(
    storm: Storm, rng: random.Random, blows: list[Callable[[], None]], *, pause_s: tuple[float, float] = (0.1, 0.7)
) -> None:
    """Strikes the blows in random order, after random pauses."""
    rng.shuffle(blows)
    for blow in blows:
        time.sleep(rng.uniform(*pause_s))
        blow()
    deadline = time.monotonic() + SETTLE_S
    outcomes = storm.ledger.outcomes
    while (outcomes["claimed"] < CLAIMS or outcomes["deleted"] < DELETES) and time.monotonic() < deadline:
        time.sleep(0.1)


def restarted(replica: Replica) -> Callable[[], None]:
    def blow() -> None:
        replica.kill()
        replica.start()

    return blow


def fenced(deployment: Deployment, host: str) -> Callable[[], None]:
    """Declares a live host dead; its agent enrols it again."""

    def blow() -> None:
        operator, path = deployment.caller(), f"/v1/hosts/{host}"
        while True:
            generation = operator.ask("GET", path).body["generation"]
            reply = operator.ask("POST", f"{path}:fence", {"confirm": host, "force": True}, if_match=generation)
            if reply.status == 200:
                return
            assert reply.code == "generation.stale", reply.body

    return blow


def check(storm: Storm) -> None:
    """Checks every promise against the database, the hosts' memory and the watchers' memory."""
    ledger, audit = storm.ledger, Audit(storm.deployment.url)
    _ask_again(storm)
    watched, tenant_watched = storm.watcher.finish(), storm.tenant_watcher.finish()
    for replica in storm.deployment.replicas:
        replica.kill()
    complaints = [*ledger.complaints, *storm.watcher.complaints, *storm.tenant_watcher.complaints]
    complaints += [complaint for agent in storm.agents for complaint in agent.complaints]
    assert complaints == []
    assert storm.deployment.server_errors() == []
    assert audit.violations() == []

    stored = audit.slices()
    obeyed = {UUID(one) for agent in storm.agents for one in agent.obeyed}
    events = audit.events()
    lost = {UUID(subject) for _, kind, subject, *_ in events if kind == "slice.lost"}
    kept = ledger.claimed.keys() - ledger.deleted - lost
    assert {one for one, row in stored.items() if row.state != "claimed"} == set(), "tombstones that nobody fulfilled"
    assert kept - stored.keys() == set(), "claims that were promised and are gone"
    assert (ledger.deleted | lost) & stored.keys() == set(), "deleted or lost claims that are back"
    assert (ledger.deleted | lost) - obeyed == set(), "claims that ended without their host's word"
    for slice_id in kept:
        row, told = stored[slice_id], ledger.claimed[slice_id]
        promised = (told.answer["tenant"], told.answer["host"], UUID(told.answer["gpu_id"]), told.body["vm_uuid"])
        assert (row.tenant, row.host, row.gpu, str(row.vm_uuid)) == promised
    unheard_of = {row.vm_uuid for one, row in stored.items() if one not in ledger.claimed}
    assert unheard_of - ledger.unsure == set(), "claims that nobody asked for or was told about"

    assert watched == [seq for seq, *_ in events], "the watcher missed an event or saw one twice"
    assert [(one["kind"], one["object"]) for one in storm.watcher.seen] == [row[1:3] for row in events]
    mine = [row[0] for row in events if row[3] is not None and row[3].startswith("acme")]
    assert tenant_watched == mine, "the tenant's watcher missed an event or saw one twice"


def _ask_again(storm: Storm) -> None:
    """An answered request that is sent again gets its first answer, whatever became of the slice."""
    answered = list(storm.ledger.claimed.items())
    for slice_id, told in random.Random(storm.seed).sample(answered, min(ASKED_AGAIN, len(answered))):
        again = storm.deployment.caller(told.token).ask("POST", "/v1/slices", told.body, key=told.key)
        assert (again.status, again.body) == (201, told.answer), slice_id


def report(storm: Storm, began_s: float) -> None:
    """Prints a summary of the run, and checks that enough of everything happened."""
    outcomes, tally = storm.ledger.outcomes, storm.deployment.tally
    documents = sum(agent.documents for agent in storm.agents)
    print(f"{time.monotonic() - began_s:.1f} s, {dict(outcomes)}, {dict(tally)}, {documents} documents")
    print(
        f"{len(storm.watcher.seen)} events, {len(storm.ledger.unsure)} claims that nobody waited for and were refused"
    )
    assert outcomes["claimed"] >= CLAIMS
    assert outcomes["deleted"] >= DELETES
    assert outcomes["quota.exceeded"] > 0
    assert outcomes["capacity.none"] > 0
    assert tally["lost"] > 0, "no kill met a request under way"
    assert all(agent.fenced for agent in storm.agents), "a host was not fenced"


def weather(deployment: Deployment, seed: int, blows: list[Callable[[], None]], **options: tuple[float, float]) -> None:
    """Runs one storm from the first tenant to the last check."""
    began_s = time.monotonic()
    run = Storm(deployment, seed)
    rage(run, random.Random(seed), [*blows, *(fenced(deployment, host) for host in HOSTS)], **options)
    run.calm()
    run.still()
    check(run)
    report(run, began_s)


def test_sqlite_while_the_api_is_killed(sqlite_url: str, tmp_path: Path, seed: int) -> None:
    with deployed(tmp_path, sqlite_url, replicas=1, **CROWDED) as running:
        weather(running, seed, [restarted(running.replicas[0])] * 3)


def test_postgresql_while_replicas_and_the_database_are_killed(
    postgresql: Cluster, postgresql_url: str, tmp_path: Path, seed: int
) -> None:
    with deployed(tmp_path, postgresql_url, replicas=2, **CROWDED) as running:
        one, two = running.replicas
        weather(running, seed, [restarted(one), restarted(two), restarted(two), postgresql.restart])


@pytest.mark.long
@pytest.mark.parametrize("round_", range(2))
def test_sqlite_for_longer(sqlite_url: str, tmp_path: Path, seed: int, round_: int) -> None:
    with deployed(tmp_path, sqlite_url, replicas=1, **CROWDED) as running:
        weather(running, seed, [restarted(running.replicas[0])] * 10, pause_s=(0.05, 3))


@pytest.mark.long
@pytest.mark.parametrize("round_", range(2))
def test_postgresql_for_longer(
    postgresql: Cluster, postgresql_url: str, tmp_path: Path, seed: int, round_: int
) -> None:
    with deployed(tmp_path, postgresql_url, replicas=2, **CROWDED) as running:
        one, two = running.replicas
        blows = [restarted(one), restarted(two), restarted(one), restarted(two), postgresql.restart] * 3
        weather(running, seed, blows, pause_s=(0.05, 3))
