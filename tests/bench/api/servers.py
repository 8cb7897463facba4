# SPDX-License-Identifier: Apache-2.0
"""The servers under test: PostgreSQL that waits for the disk and counts, and replicas of the API."""

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.api.cluster import Cluster
from tests.api.http.process import COMMAND, START_S, settings_file
from tests.bench.api.load import Address, address_of

SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "all",
}


@contextlib.contextmanager
def postgresql() -> Iterator[Cluster]:
    """With ``fsync`` and ``synchronous_commit`` as PostgreSQL has them by itself: on."""
    with Cluster.started(durable=True, settings=SETTINGS) as cluster:
        yield cluster


@dataclass(frozen=True)
class Counts:
    """What a database did: statements that clients sent, and how often the server waited for its log to be on disk."""

    statements: int
    exec_ms: float
    syncs: int
    wal_bytes: int

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(
            self.statements - other.statements,
            self.exec_ms - other.exec_ms,
            self.syncs - other.syncs,
            self.wal_bytes - other.wal_bytes,
        )


def counts(cluster: Cluster, database: str) -> Counts:
    """Of one database, but for its log, which all of them share. Transaction control counts as statements."""
    with psycopg.connect(cluster.url("postgres"), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        row = connection.execute(
            "SELECT COALESCE(SUM(s.calls), 0), COALESCE(SUM(s.total_exec_time), 0), w.wal_sync, w.wal_bytes"
            " FROM pg_stat_wal w LEFT JOIN"
            " (pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = %s) ON s.toplevel"
            " GROUP BY w.wal_sync, w.wal_bytes",
            [database],
        ).fetchone()
    assert row is not None
    return Counts(int(row[0]), float(row[1]), int(row[2]), int(row[3]))


@contextlib.contextmanager
def replicas(
    directory: Path, url: str, *, count: int, settings: Mapping[str, str | int] | None = None
) -> Iterator[list[Address]]:
    """``vgpumgr-api serve``, as often as wanted, on ports of the kernel's choice."""
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(_process(directory / f"replica-{number}", url, settings or {}))
            for number in range(count)
        ]
        yield [_listening(log, process) for log, process in running]


@contextlib.contextmanager
def _process(
    directory: Path, url: str, settings: Mapping[str, str | int]
) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    directory.mkdir(parents=True)
    log = directory / "api.log"
    # Few tokens stand for many users here, whom no limit would meet.
    unlimited = {"token_requests_per_s": 0, "tenant_requests_per_s": 0, "tenant_requests_at_once": 0}
    path = settings_file(directory, database=url, **unlimited, **settings)
    with log.open("wb") as output:
        process = subprocess.Popen([*COMMAND, "serve", "--config", path], stderr=output)
    try:
        yield log, process
    finally:
        process.terminate()
        process.wait()


def _listening(log: Path, process: subprocess.Popen[bytes]) -> Address:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if found := re.search(r"listening on (\S+)$", log.read_text(), re.M):
            return address_of(found[1])
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"the API does not listen: {log.read_text()}")
