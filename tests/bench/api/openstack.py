# SPDX-License-Identifier: Apache-2.0
"""OpenStack Placement as a baseline: from PyPI, in a separate environment, on the same PostgreSQL, with the same GPUs.

Each GPU is a resource provider with an inventory of 20 units of ``VGPU``, and each slice is a consumer of one unit.
This is the simplest model, without traits and trees. A claim works like Nova's: it asks for candidates, chooses one,
and puts its allocation; after a conflict it asks again. Nova's default is 1000 candidates. Fewer candidates are
measured, too, because that is faster. Choosing among them at random avoids conflicts.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import psycopg

from tests.api.cluster import Cluster
from tests.bench.api.fleet import FULL, MEM, Fleet
from tests.bench.api.load import ANSWER_S, Address, Answer, Connection, Tally, address_of

PACKAGES = ("openstack-placement==16.0.0", "psycopg2-binary==2.9.11", "gunicorn==27.0.1")
THREADS = 8
START_S = 120
HEADERS = (
    "Host: localhost\r\nX-Auth-Token: admin\r\nOpenStack-API-Version: placement 1.39\r\nAccept: application/json\r\n"
)
TRIES = 10
"""How often a claim starts again after a conflict."""


class NotInstallableError(Exception):
    """Placement cannot be installed on this machine."""


def installed(directory: Path) -> Path:
    """Returns the directory of Placement's programs; installs them if necessary."""
    binaries = directory / "bin"
    done = directory / "installed"
    if done.exists() and done.read_text() == repr(PACKAGES):
        return binaries
    for command in (
        [sys.executable, "-m", "venv", str(directory)],
        [str(binaries / "pip"), "install", "--quiet", "--disable-pip-version-check", *PACKAGES],
    ):
        ran = subprocess.run(command, capture_output=True, text=True, timeout=900)
        if ran.returncode != 0:
            raise NotInstallableError(ran.stderr.strip()[-500:])
    done.write_text(repr(PACKAGES))
    return binaries


@contextlib.contextmanager
def serving(
    binaries: Path, directory: Path, cluster: Cluster, name: str, fleet: Fleet, *, workers: int
) -> Iterator[Address]:
    """Runs Placement with all GPUs and slices of `fleet`. It has as many processes as our API, with threads, because it
    waits a lot.
    """
    url = cluster.create(name)
    where = _settings(directory, url)
    made = subprocess.run(
        [binaries / "placement-manage", "--config-dir", where, "db", "sync"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if made.returncode != 0:
        raise NotInstallableError(made.stderr.strip()[-500:])
    log = directory / "placement.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                binaries / "gunicorn",
                f"--workers={workers}",
                "--worker-class=gthread",
                f"--threads={THREADS}",
                "--bind=127.0.0.1:0",
                "--keep-alive=75",
                "--timeout=600",
                "placement.wsgi.api:application",
            ],
            env={**os.environ, "OS_PLACEMENT_CONFIG_DIR": str(where)},
            stderr=output,
            stdout=output,
        )
    try:
        address = _listening(log, process)
        asyncio.run(_awake(address))
        _fill(url, fleet)
        yield address
    finally:
        process.terminate()
        process.wait()


def claims(address: Address, clients: int, seconds: float, *, limit: int) -> Tally:
    """A closed loop of claims; the time of a claim includes all its requests, also those after a conflict."""
    return asyncio.run(_claims(address, clients, seconds, limit))


async def _claims(address: Address, clients: int, seconds: float, limit: int) -> Tally:
    tally = Tally(seconds)
    begun_s = time.perf_counter()

    async def client(number: int) -> None:
        connection = await Connection.opened(address)
        rng = random.Random(number)
        while (sent_s := time.perf_counter()) < begun_s + seconds:
            async with asyncio.timeout(ANSWER_S):
                tally.note(await _claim(connection, rng, limit), sent_s)
        connection.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    tally.seconds = time.perf_counter() - begun_s
    return tally


async def _claim(connection: Connection, rng: random.Random, limit: int) -> Answer:
    consumer = str(uuid.uuid4())
    for _ in range(TRIES):
        asked = await connection.ask(_message("GET", f"/allocation_candidates?resources=VGPU:1&limit={limit}"))
        if asked.status != 200:
            return asked
        found = json.loads(asked.body)["allocation_requests"]
        wanted = {
            "allocations": rng.choice(found)["allocations"],
            "consumer_generation": None,
            "consumer_type": "INSTANCE",
            "project_id": "project",
            "user_id": "user",
        }
        put = await connection.ask(_message("PUT", f"/allocations/{consumer}", json.dumps(wanted).encode()))
        if put.status != 409:
            return put
    return put


def _message(method: str, path: str, body: bytes = b"") -> bytes:
    length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\n{HEADERS}{length}\r\n".encode() + body


def _settings(directory: Path, url: str) -> Path:
    where = directory / "etc"
    where.mkdir(parents=True, exist_ok=True)
    connection = url.replace("postgresql://", "postgresql+psycopg2://")
    pool = f"max_pool_size = {THREADS}\nmax_overflow = {THREADS}\n"
    (where / "placement.conf").write_text(
        f"[api]\nauth_strategy = noauth2\n[placement_database]\nconnection = {connection}\n{pool}"
    )
    return where


def _listening(log: Path, process: subprocess.Popen[bytes]) -> Address:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"Listening at: (http://\S+)", log.read_text(errors="replace")):
            return address_of(found[1])
        time.sleep(0.1)
    raise NotInstallableError(log.read_text(errors="replace")[-500:])


async def _awake(address: Address) -> None:
    """Waits for Placement, which makes its resource classes when it starts."""
    connection = await Connection.opened(address)
    async with asyncio.timeout(START_S):
        answer = await connection.ask(_message("GET", "/resource_classes"))
    connection.close()
    if answer.status != 200:
        raise NotInstallableError(f"Placement answers {answer.status}: {answer.body[:300]!r}")


def _fill(url: str, fleet: Fleet) -> None:
    with psycopg.connect(fleet.url) as ours:
        gpus = ours.execute(
            "SELECT g.id::text, g.mem_bytes FROM gpus g JOIN hosts h ON h.id = g.host_id WHERE h.name <> 'host-0'"
        ).fetchall()
        slices = ours.execute("SELECT id::text, gpu_id::text FROM slices").fetchall()
    numbers = {gpu: number for number, (gpu, _) in enumerate(gpus, start=1)}
    used = [(one, numbers[gpu]) for one, gpu in slices if gpu in numbers]
    with psycopg.connect(url) as theirs:
        theirs.execute("INSERT INTO projects (id, external_id) VALUES (1, 'project')")
        theirs.execute("INSERT INTO users (id, external_id) VALUES (1, 'user')")
        row = theirs.execute("SELECT id FROM resource_classes WHERE name = 'VGPU'").fetchone()
        assert row is not None
        vgpu = row[0]
        tables: dict[str, Iterable[tuple[object, ...]]] = {
            "resource_providers (id, root_provider_id, uuid, name, generation)": (
                (number, number, gpu, f"gpu-{number}", 0) for gpu, number in numbers.items()
            ),
            "inventories (resource_provider_id, resource_class_id, total,"
            " reserved, min_unit, max_unit, step_size, allocation_ratio)": (
                (numbers[gpu], vgpu, min(FULL, mem_bytes // MEM), 0, 1, 1, 1, 1.0) for gpu, mem_bytes in gpus
            ),
            "consumers (uuid, project_id, user_id, generation)": ((one, 1, 1, 1) for one, _ in used),
            "allocations (consumer_id, resource_provider_id, resource_class_id, used)": (
                (one, number, vgpu, 1) for one, number in used
            ),
        }
        for table, rows in tables.items():
            with theirs.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
                for each in rows:
                    copy.write_row(each)
        for table in ("resource_providers", "projects", "users"):
            theirs.execute(f"SELECT setval('{table}_id_seq', (SELECT max(id) FROM {table}))".encode())
    with psycopg.connect(url, autocommit=True) as theirs:
        theirs.execute("VACUUM ANALYZE")
