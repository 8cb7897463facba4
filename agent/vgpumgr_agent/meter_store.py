# SPDX-License-Identifier: Apache-2.0
"""The meter: usage of every group on this host by hour. Hours stay on disk until the API has them, and for ten days.

The last seen counters and the hours with their growth are written in one transaction. So a crash loses nothing that the
kernel still knows, and counts nothing twice. A full disk delays counting.
"""

import logging
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path
from uuid import UUID, uuid4

from vgpumgr.wire.usage import READINGS_MAX, Metered, Reading, Readings
from vgpumgr_agent import faults
from vgpumgr_agent.backends import GroupKey, Observed
from vgpumgr_agent.meter import HOUR_NS, NOTHING, USED, GroupSample, Moment, Sample, Used, grown, sampled

log = logging.getLogger(__name__)

KEPT_HOURS = 240
"""How long an hour that the API has is kept, to send it again to a restored database that lacks it."""

_COLUMNS = ", ".join(USED)
_TABLES = f"""
CREATE TABLE meter (id TEXT NOT NULL, revision INTEGER NOT NULL, acknowledged INTEGER NOT NULL);
CREATE TABLE look (boot_id TEXT NOT NULL, wall_ns INTEGER, before_ns INTEGER, after_ns INTEGER);
CREATE TABLE engines (gpu TEXT PRIMARY KEY, wall_ns INTEGER NOT NULL);
CREATE TABLE groups (
    gpu TEXT, tenant TEXT, generation INTEGER, run_ns INTEGER, runs INTEGER, switches INTEGER, throttled_ns INTEGER,
    latency_ns INTEGER, lag_ns INTEGER, id INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (gpu, tenant)
);
CREATE TABLE hours (
    hour INTEGER, gpu TEXT, tenant TEXT, revision INTEGER NOT NULL, {", ".join(f"{name} INTEGER" for name in USED)},
    PRIMARY KEY (hour, gpu, tenant)
);
CREATE INDEX hours_revision ON hours (revision);
PRAGMA user_version = 2;
"""
_FROM_1 = """
ALTER TABLE groups ADD COLUMN id INTEGER NOT NULL DEFAULT 0;
PRAGMA user_version = 2;
"""


@dataclass(frozen=True)
class MeterClock:
    """This host's clocks, in nanoseconds."""

    wall_ns: Callable[[], int] = time.time_ns
    monotonic_ns: Callable[[], int] = time.monotonic_ns


class Meter:
    """A file in the state directory, whose lock keeps a second agent out. Threads may share it."""

    def __init__(self, path: Path, clock: MeterClock | None = None) -> None:
        """Open the file. A damaged one is set aside, and counting starts again. Raises OSError."""
        self._path = path
        self._guard = threading.RLock()
        self.clock = clock or MeterClock()
        self._trouble = ""
        try:
            self._database = _opened(path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # disk full or no permission: the file is not damaged
                raise OSError(0, f"{error}", str(path)) from error
            aside = path.with_name(f"{path.name}.damaged")
            log.warning(
                "%s is damaged (%s): kept as %s; usage that the API has not received is lost", path, error, aside
            )
            path.rename(aside)
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self._database = _opened(path)

    @property
    def trouble(self) -> str:
        """Return why the last look was not counted, or an empty text."""
        return self._trouble and f"usage cannot be written to {self._path}: {self._trouble}; it is counted once it can"

    def close(self) -> None:
        """Close the file."""
        with self._guard:
            self._database.close()

    # ---- counting

    def watch(self, observe: Callable[[], Observed]) -> Observed:
        """Observe the host and count usage since the last look. Raises what `observe` raises."""
        with self._guard:  # looks must be counted in order
            before_ns = self.clock.monotonic_ns()
            observed = observe()
            after_ns = self.clock.monotonic_ns()
            self.count(observed, Moment(wall_ns=self.clock.wall_ns(), before_ns=before_ns, after_ns=after_ns))
        return observed

    def count(self, observed: Observed, moment: Moment) -> bool:
        """Count usage since the last look. Return whether the usage is on disk. If not, the next look counts it."""
        now = sampled(observed, moment)
        with self._guard:
            try:
                with self._database:
                    self._database.execute("BEGIN IMMEDIATE")
                    last = self._last()
                    # Count nothing at the first look, because an earlier meter may have counted the same usage.
                    self._add(grown(last, now, observed) if last is not None else ())
                    faults.point("meter.added")
                    self._remember(now)
            except sqlite3.Error as error:
                self._trouble = str(error)
                return False
            self._trouble = ""
        faults.point("meter.counted")
        return True

    def _last(self) -> Sample | None:
        look = self._database.execute("SELECT boot_id, wall_ns, before_ns, after_ns FROM look").fetchone()
        if look is None:
            return None
        groups = self._database.execute(
            "SELECT gpu, tenant, generation, run_ns, runs, switches, throttled_ns, latency_ns, lag_ns, id FROM groups"
        )
        return Sample(
            boot_id=look[0],
            moment=Moment(wall_ns=look[1], before_ns=look[2], after_ns=look[3]),
            engines=dict(self._database.execute("SELECT gpu, wall_ns FROM engines").fetchall()),
            groups={
                (row[0], row[1]): GroupSample(
                    generation=row[2],
                    run_ns=row[3],
                    runs=row[4],
                    switches=row[5],
                    throttled_ns=row[6],
                    latency_ns=row[7],
                    lag_ns=row[8],
                    id=row[9],
                )
                for row in groups
            },
        )

    def _remember(self, now: Sample) -> None:
        for table in ("look", "engines", "groups"):
            self._database.execute(f"DELETE FROM {table}")
        self._database.execute("INSERT INTO look VALUES (?, ?, ?, ?)", (now.boot_id, *astuple(now.moment)))
        self._database.executemany("INSERT INTO engines VALUES (?, ?)", now.engines.items())
        self._database.executemany(
            "INSERT INTO groups VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(*key, *astuple(sample)) for key, sample in now.groups.items()],
        )

    def _add(self, used: Iterable[tuple[int, GroupKey, Used]]) -> None:
        sums: dict[tuple[int, str, str], Used] = defaultdict(lambda: NOTHING)
        for hour, key, part in used:
            sums[(hour, *key)] += part
        if not sums:
            return
        _, revision, known = self._identity()
        self._database.execute("UPDATE meter SET revision = ?", (revision + len(sums),))
        self._database.executemany(
            f"INSERT INTO hours (hour, gpu, tenant, revision, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET revision = excluded.revision, "
            + ", ".join(f"{name} = {name} + excluded.{name}" for name in USED),
            [(*key, revision + place, *astuple(part)) for place, (key, part) in enumerate(sums.items(), start=1)],
        )
        # Once the API receives a new hour, it may forget old hours. So delete old hours here first.
        self._drop(known)

    def _drop(self, known: int) -> None:
        """Delete old hours that the API has. It has all up to the revision `known`."""
        self._database.execute(
            "DELETE FROM hours WHERE revision <= ? AND hour < ?",
            (known, self.clock.wall_ns() // HOUR_NS - KEPT_HOURS),
        )

    # ---- sending to the API

    def pending(self) -> Readings:
        """Return readings that the API lacks, at most READINGS_MAX; if it lacks none, only the meter's state."""
        with self._guard:
            identity, newest, after = self._identity()
            rows = self._database.execute(
                f"SELECT hour, gpu, tenant, revision, {_COLUMNS} FROM hours WHERE revision > ?"
                " ORDER BY revision LIMIT ?",
                (after, READINGS_MAX),
            ).fetchall()
        return Readings(
            meter_id=identity,
            after=after,
            through=rows[-1][3] if rows else after,
            newest=newest,
            readings=[
                Reading(
                    hour=row[0],
                    gpu=row[1],
                    tenant=row[2],
                    revision=row[3],
                    **dict(zip(USED, row[4:], strict=True)),
                )
                for row in rows
            ],
        )

    def acknowledged(self, sent: Readings, answer: Metered) -> None:
        """Record what the API has. A restored API may have less than before. Raises sqlite3.Error."""
        with self._guard, self._database:
            self._database.execute("BEGIN IMMEDIATE")
            identity, _, _ = self._identity()
            if identity != sent.meter_id:
                return
            if answer.restart:
                log.warning("the API does not take what this meter counts: another one begins")
                self._database.execute("DELETE FROM hours")
                self._database.execute("UPDATE meter SET id = ?, revision = 0, acknowledged = 0", (str(uuid4()),))
                return
            self._database.execute("UPDATE meter SET acknowledged = ?", (answer.revision,))
            self._drop(answer.revision)

    def _identity(self) -> tuple[UUID, int, int]:
        identity, revision, acknowledged = self._database.execute(
            "SELECT id, revision, acknowledged FROM meter"
        ).fetchone()
        return UUID(identity), revision, acknowledged


def _opened(path: Path) -> sqlite3.Connection:
    """Open or create the file. Raises sqlite3.Error, with the file closed."""
    path.touch(mode=0o600)
    database = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        with closing(database.execute("PRAGMA user_version")) as version:
            (found,) = version.fetchone()
        if not found:
            with database:
                database.execute("BEGIN IMMEDIATE")
                _execute(database, _TABLES)
                database.execute("INSERT INTO meter VALUES (?, 0, 0)", (str(uuid4()),))
        elif database.execute("PRAGMA quick_check").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("its pages do not agree")
        elif found == 1:
            with database:
                database.execute("BEGIN IMMEDIATE")
                _execute(database, _FROM_1)
    except BaseException:
        database.close()
        raise
    return database


def _execute(database: sqlite3.Connection, statements: str) -> None:
    for statement in statements.split(";"):
        database.execute(statement)
