# SPDX-License-Identifier: Apache-2.0
"""The servers under test: a durable PostgreSQL with statistics, replicas of the API, and their baseline."""

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import psycopg

from tests.api.cluster import Cluster
from tests.api.http.process import COMMAND, START_S, settings_file
from tests.bench.api import processor
from tests.bench.api.load import Address, address_of

SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "all",
}


@contextlib.contextmanager
def postgresql() -> Iterator[Cluster]:
    """Runs PostgreSQL with its default ``fsync`` and ``synchronous_commit``: on."""
    with Cluster.started(durable=True, settings=SETTINGS) as cluster:
        yield cluster


@dataclass(frozen=True)
class Replicas:
    """Addresses and processes of the replicas."""

    addresses: Sequence[Address]
    processes: Sequence[int]


@dataclass(frozen=True)
class Counts:
    """The work of a database: statements from clients, and how often the server waited for its log to be on disk.

    `exec_ms`: the duration of its statements, including waits for locks. `*_cpu_s`: processor time, user and system, of
    the API replicas, of the whole PostgreSQL server, and of the clients, which are in this process.
    """

    statements: int
    exec_ms: float
    syncs: int
    wal_bytes: int
    api_cpu_s: float
    postgresql_cpu_s: float
    clients_cpu_s: float

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(*(mine - before for mine, before in zip(astuple(self), astuple(other), strict=True)))

    def cpu_ms(self, each: int) -> dict[str, float]:
        """Returns table columns: processor time in ms per request, for `each` requests."""
        used = {"API": self.api_cpu_s, "PostgreSQL": self.postgresql_cpu_s, "clients": self.clients_cpu_s}
        return {f"{who} CPU ms": 1000 * used_s / each for who, used_s in used.items()}


def counts(cluster: Cluster, database: str, replicas: Replicas) -> Counts:
    """Counts of one database; log and processor time are those of the whole server. Transaction control counts as
    statements.
    """
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
    return Counts(
        statements=int(row[0]),
        exec_ms=float(row[1]),
        syncs=int(row[2]),
        wal_bytes=int(row[3]),
        api_cpu_s=processor.used_s(replicas.processes),
        postgresql_cpu_s=processor.used_s([_postmaster(cluster)]),
        clients_cpu_s=time.process_time(),
    )


def _postmaster(cluster: Cluster) -> int:
    return int((cluster.directory / "data" / "postmaster.pid").read_text().split()[0])


def replicas(
    directory: Path, url: str, *, count: int, settings: Mapping[str, str | int] | None = None
) -> contextlib.AbstractContextManager[Replicas]:
    """Runs ``vgpumgr-api serve``, in the given number, on ports that the kernel chooses."""
    # A few tokens stand for many users, so no limit must apply.
    unlimited = {"token_requests_per_s": 0, "tenant_requests_per_s": 0, "tenant_requests_at_once": 0}
    merged = {**unlimited, **(settings or {})}

    def command(place: Path) -> Sequence[str | Path]:
        return [*COMMAND, "serve", "--config", settings_file(place, database=url, **merged)]

    return _running(directory, count, command)


def bare(directory: Path, certificate: Path, key: Path, *, count: int) -> contextlib.AbstractContextManager[Replicas]:
    """Runs servers with only TLS, HTTP and a fixed answer; see `tests.bench.api.bare`."""
    return _running(directory, count, lambda _: [sys.executable, "-m", "tests.bench.api.bare", certificate, key])


@contextlib.contextmanager
def _running(directory: Path, count: int, command: Callable[[Path], Sequence[str | Path]]) -> Iterator[Replicas]:
    with contextlib.ExitStack() as stack:
        running = []
        for number in range(count):
            place = directory / f"replica-{number}"
            place.mkdir(parents=True)
            running.append(stack.enter_context(_process(place / "server.log", command(place))))
        yield Replicas(
            addresses=[_listening(log, process) for log, process in running],
            processes=[process.pid for _, process in running],
        )


@contextlib.contextmanager
def _process(log: Path, command: Sequence[str | Path]) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stderr=output)
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
    raise RuntimeError(f"the server does not listen: {log.read_text()}")
