# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to agents, hosts, clocks, messages and hours, the ledger holds what was charged, to the nanosecond.

The agent's real meter looks at a played kernel and reports to the real service. Messages are lost, repeated, late or
reordered. The oracle is the played kernel: what it had charged each tenant at the last look, spread over hours by the
rule of docs/usage.md, which this test implements a second time.
"""

import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from vgpumgr_agent.backends import Observed, ObservedGpu, ObservedGroup
from vgpumgr_agent.meter import Moment
from vgpumgr_agent.meter_store import Meter, MeterClock
from vgpumgr_api.db import ledger
from vgpumgr_api.db.database import Database
from vgpumgr_api.resources.paging import PageRequest
from vgpumgr_api.usage import books, ledger_list, metering
from vgpumgr_api.usage.ledger_scope import LedgerFilter

from tests.api.conftest import Clock
from tests.api.world import ADDRESS, Agent, World
from vgpumgr.wire.usage import Granularity, Metered, Readings

S = 10**9
NAMES = ("acme", "blue")
Step = tuple[str, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("charge acme", "charge blue")), st.integers(1, 10**13)),
        st.tuples(st.just("wait"), st.integers(1, 9000)),
        st.tuples(
            st.sampled_from(
                ("look", "look", "tell", "tell", "lose", "late", "deliver", "crash", "reboot", "reload", "forget acme")
            ),
            st.just(0),
        ),
        st.tuples(st.just("restore"), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)


@dataclass
class Kernel:
    """Charges groups. `seen`: each tenant's charge up to the last look, by hour; later charges may be lost."""

    now_s: int = 10**6
    born_s: int = 10**6 - 5000
    boot_id: UUID = field(default_factory=uuid4)
    groups: dict[str, ObservedGroup] = field(default_factory=dict)
    unseen: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seen: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    looked_s: int | None = None

    def charge(self, tenant: str, run_ns: int) -> None:
        """An engine never runs for longer than the time that passed."""
        free_ns = (self.now_s - max(self.born_s, self.looked_s or 0)) * S - sum(self.unseen.values())
        run_ns = min(run_ns, free_ns)
        if run_ns > 0:
            group = self.groups[tenant]
            self.groups[tenant] = replace(
                group, run_ns=group.run_ns + run_ns, runs=group.runs + 1, lag_ns=-run_ns % 977
            )
            self.unseen[tenant] += run_ns

    def configure(self) -> None:
        for tenant in NAMES:
            self.groups.setdefault(
                tenant,
                ObservedGroup(
                    gpu=ADDRESS, tenant=tenant, configured=True, slices=0, weight=100, timeslice_us=1, cap_us=0,
                    cap_period_us=0, generation=1,
                ),
            )  # fmt: skip

    def restart(self) -> None:
        """Counters are reset; what no look has seen is lost."""
        self.groups.clear()
        self.unseen.clear()
        self.now_s += 1
        self.born_s = self.now_s

    def observe(self, wall_s: int) -> Observed:
        since_s = max(self.born_s, self.looked_s or self.born_s)
        for tenant, run_ns in self.unseen.items():
            told = 0
            for hour in range((wall_s - (self.now_s - since_s)) // 3600, wall_s // 3600 + 1):
                passed_s = min((hour + 1) * 3600, wall_s) - (wall_s - (self.now_s - since_s))
                so_far = run_ns * passed_s // (self.now_s - since_s)
                self.seen[tenant, hour] += so_far - told
                told = so_far
        self.unseen.clear()
        self.looked_s = self.now_s
        gpu = ObservedGpu(
            address=ADDRESS, engine="soft", backend="kmod", attach="permit", mem_bytes=0, timeslice_min_us=0,
            max_chunk_us=0, wall_ns=(self.now_s - self.born_s) * S, idle_ns=0, types={},
        )  # fmt: skip
        groups = {(ADDRESS, tenant): group for tenant, group in self.groups.items()}
        return Observed(boot_id=self.boot_id, gpus={ADDRESS: gpu}, groups=groups)


class Play:
    """One host with its meter, an API, and the messages between them."""

    def __init__(self, directory: Path, database: Database, clock: Clock) -> None:
        self.directory, self.database, self.clock = directory, database, clock
        self.begun = clock.now
        world = World(database)
        mark = uuid4().hex[:8]
        self.names = {name: f"{name}-{mark}" for name in NAMES}
        self.agent: Agent = world.host(f"host-{mark}")
        profile = world.profile(share=100, name=f"profile-{mark}")
        for name in self.names.values():
            world.tenant(name)
            world.claim(name, profile, host=self.agent.name)
        self.world = world
        self.actor = self.agent.actor
        self.kernel = Kernel()
        self.kernel.configure()
        self.meter = self._opened()
        self.on_their_way: list[Readings] = []
        self.look()

    def _opened(self) -> Meter:
        return Meter(self.directory / "meter.db", MeterClock(wall_ns=lambda: self.wall_s * S, monotonic_ns=lambda: 0))

    @property
    def wall_s(self) -> int:
        return int(self.clock.now.timestamp())

    def do(self, step: Step) -> None:
        word, number = step
        if word.startswith("charge"):
            self.kernel.charge(word.split()[1], number)
        elif word == "wait":
            self.clock.advance(number)
            self.kernel.now_s += number
        else:
            getattr(self, word.split()[0])()

    def look(self) -> None:
        observed = self.kernel.observe(self.wall_s)
        named = {
            (gpu, self.names[tenant]): replace(group, tenant=self.names[tenant])
            for (gpu, tenant), group in observed.groups.items()
        }
        now_ns = self.kernel.now_s * S
        assert self.meter.count(
            replace(observed, groups=named), Moment(wall_ns=self.wall_s * S, before_ns=now_ns, after_ns=now_ns)
        )

    def say(self, readings: Readings) -> Metered:
        return self.database.run(lambda session: metering.meter(session, self.actor, self.agent.name, readings))

    def tell(self) -> None:
        readings = self.meter.pending()
        self.meter.acknowledged(readings, self.say(readings))

    def lose(self) -> None:
        """The API receives the message, but its answer is lost."""
        self.say(self.meter.pending())

    def late(self) -> None:
        self.on_their_way.append(self.meter.pending())

    def deliver(self) -> None:
        """Delivers the youngest message first, and each twice; no one waits for the answers."""
        while self.on_their_way:
            readings = self.on_their_way.pop()
            for _ in range(2):
                self.say(readings)

    def crash(self) -> None:
        self.meter.close()
        self.meter = self._opened()

    def reboot(self) -> None:
        self.kernel.restart()
        self.kernel.boot_id = uuid4()
        self.kernel.looked_s = None
        self.crash()
        self.look()
        self.kernel.configure()

    def reload(self) -> None:
        self.kernel.restart()
        self.kernel.configure()

    def forget(self) -> None:
        """Like the agent: the group is looked at, removed, seen to be gone, and made again."""
        self.look()
        del self.kernel.groups["acme"]
        self.look()
        self.kernel.configure()

    def restore(self) -> None:
        """Restores the first state. A server's database is restored by hand, in the tests of operations."""
        if self.database.is_sqlite:
            self.database.close()
            shutil.copyfile(self.directory / "backup.db", self.directory / "vgpumgr.db")
            for suffix in ("-wal", "-shm"):
                (self.directory / f"vgpumgr.db{suffix}").unlink(missing_ok=True)

    def check(self) -> None:
        self.deliver()
        for _ in range(3):
            self.tell()
        booked: dict[tuple[str, int], int] = defaultdict(int)
        due = 0
        mine = {name: tenant for tenant, name in self.names.items()}
        for row in self._rows():
            assert row.booked >= row.hour
            booked[mine[row.tenant], int(row.hour.timestamp()) // 3600] += row.run_ns
            due += row.due_ns
        seen = {key: run_ns for key, run_ns in self.kernel.seen.items() if run_ns}
        assert {key: run_ns for key, run_ns in booked.items() if run_ns} == seen
        assert abs(due - sum(seen.values())) <= 977 * 40 * len(NAMES)
        listed = self.world.run(
            ledger_list.list_ledger,
            PageRequest(),
            LedgerFilter(
                since=books.hour_of(self.begun),
                until=books.hour_of(self.clock.now) + books.HOUR,
                tenant=self.names["acme"],
                granularity=Granularity.TOTAL,
            ),
        ).items
        assert sum(row.run_ns for row in listed) == sum(ns for (name, _), ns in seen.items() if name == "acme")
        lived = self.clock.now - self.begun
        assert sum(row.slice_us for row in listed) == lived // (books.HOUR / 3_600_000_000)

    def _rows(self) -> list[ledger.LedgerEntry]:
        def read(session: Any) -> list[ledger.LedgerEntry]:
            entry = ledger.LedgerEntry
            return list(session.scalars(select(entry).where(entry.host == self.agent.name)))

        return self.database.run(read, read_only=True)


@pytest.fixture
def begin(request: pytest.FixtureRequest, engine_name: str) -> Iterator[Any]:
    """Makes a play: with its own file, or in the test's database under its own names."""
    clock = Clock()
    if engine_name == "postgresql":
        url = request.getfixturevalue("database_url")
        with closing(Database(url, clock=clock)) as shared:
            yield lambda directory: Play(directory, shared, clock)
        return
    template = request.getfixturevalue("sqlite_template")

    def make(directory: Path) -> Play:
        shutil.copyfile(template, directory / "vgpumgr.db")
        own = Clock()
        play = Play(directory, Database(f"sqlite:///{directory / 'vgpumgr.db'}", clock=own), own)
        play.database.close()
        shutil.copyfile(directory / "vgpumgr.db", directory / "backup.db")
        return play

    yield make


def played(begin: Any, steps: list[Step]) -> None:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as directory:
        play = begin(Path(directory))
        for step in steps:
            play.do(step)
        play.check()
        play.meter.close()
        if play.database.is_sqlite:
            play.database.close()


COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}


FULL: list[Step] = [
    *(("wait", 4000), ("charge acme", 3 * 10**12), ("charge blue", 10**11), ("look", 0), ("late", 0), ("tell", 0)),
    *(("wait", 900), ("charge acme", 10**11), ("look", 0), ("lose", 0), ("deliver", 0), ("crash", 0), ("tell", 0)),
    *(("wait", 50), ("charge acme", 10**10), ("forget acme", 0), ("wait", 60), ("charge acme", 10**10), ("look", 0)),
    *(("tell", 0), ("wait", 9000), ("charge blue", 10**12), ("look", 0), ("restore", 0), ("tell", 0), ("tell", 0)),
    *(("wait", 30), ("charge blue", 10**10), ("reload", 0), ("wait", 40), ("charge blue", 3 * 10**10), ("look", 0)),
    *(("tell", 0), ("wait", 100), ("charge acme", 10**10), ("reboot", 0), ("wait", 5), ("charge acme", 10**9)),
    *(("look", 0), ("late", 0), ("tell", 0), ("deliver", 0)),
]


@given(steps=STEPS)
@example(steps=FULL)
@settings(max_examples=8, **COMMON)  # type: ignore[arg-type]
def test_the_ledger_holds_what_was_charged(begin: Any, steps: list[Step]) -> None:
    played(begin, steps)


@pytest.mark.long
@given(steps=STEPS)
@settings(max_examples=2000, **COMMON)  # type: ignore[arg-type]
def test_the_ledger_holds_what_was_charged_in_many_plays(begin: Any, steps: list[Step]) -> None:
    played(begin, steps)
