#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many claims a second, and how long each takes, when many tenants claim at once on PostgreSQL.

    python -m tests.bench.claims [--processes 8] [--seconds 4] [--rounds 3] [--seed 7]

Processes call the claim service directly, without HTTP, each for tenants of its own, on a private server that does not
wait for the disk. The same claim runs in three ways, in turns, each turn on a fresh database:

    skip-locked   as it is: GPUs that other claims hold are passed over
    for-update    the usual way: SELECT ... FOR UPDATE of the best GPU waits for whoever has it
    global-lock   one advisory lock around the whole claim

After each turn the database is asked whether everything adds up.
"""

import argparse
import multiprocessing
import os
import random
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any
from uuid import UUID

import vgpumgr_api.claims.claims as service
from sqlalchemy import text
from sqlalchemy.orm import Session
from vgpumgr_api.actors import local_operator
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database
from vgpumgr_api.installation import installation
from vgpumgr_api.placement import placement

from tests.api.cluster import Cluster
from tests.api.concurrency.audit import Audit
from tests.api.world import GIB, World, gpu
from vgpumgr.wire.resources import SliceCreate

HOSTS, GPUS_PER_HOST = 16, 8
TENANTS_PER_PROCESS = 4
ATTEMPTS = placement._despite_locks
VARIANTS = ("skip-locked", "for-update", "global-lock")


@dataclass(frozen=True)
class Turn:
    """The result of one variant in one turn; times are those of single claims, in ms."""

    claims_per_s: float
    p50_ms: float
    p99_ms: float


def attempts_that_wait(*asked: Any, **more: Any) -> list[Any]:
    """Returns only the last of `placement`'s attempts. It waits for a GPU that another claim holds; the others skip
    it.
    """
    return ATTEMPTS(*asked, **more)[-1:]


def claim(variant: str, session: Session, request: SliceCreate) -> None:
    """Makes one claim in one of the ways."""
    if variant == "global-lock":
        session.execute(text("SELECT pg_advisory_xact_lock(1)"))
    service.create_slice(session, local_operator("operator:bench"), request)


def work(variant: str, url: str, tenants: list[str], seed: int, start: Barrier, seconds: float) -> list[float]:
    """One process: claims as fast as it can. Returns the time of each claim, in ms."""
    if variant == "for-update":
        placement._despite_locks = attempts_that_wait  # type: ignore[assignment]
    rng = random.Random(seed)
    database = Database(url)
    took_ms = []
    database.run(lambda session: session.execute(text("SELECT 1")))
    start.wait()
    end_s = time.monotonic() + seconds
    while (begun_s := time.monotonic()) < end_s:
        request = SliceCreate(tenant=rng.choice(tenants), profile="thin", vm_uuid=UUID(int=rng.getrandbits(128)))
        database.run(lambda session, wanted=request: claim(variant, session, wanted))  # type: ignore[misc]
        took_ms.append((time.monotonic() - begun_s) * 1000)
    database.close()
    return took_ms


def turn(cluster: Cluster, variant: str, name: str, options: argparse.Namespace) -> Turn:
    """Runs one variant on a new database and checks the result."""
    url = cluster.create(name)
    database = Database(url)
    schema.upgrade(database)
    database.run(installation.ensure)
    owners = furnish(World(database), options.processes)
    database.close()
    forked = multiprocessing.get_context("fork")
    with forked.Manager() as manager:
        start = manager.Barrier(options.processes)
        with ProcessPoolExecutor(options.processes, mp_context=forked) as pool:
            running = [
                pool.submit(work, variant, url, tenants, options.seed * 100 + number, start, options.seconds)
                for number, tenants in enumerate(owners)
            ]
            took_ms = sorted(one for each in running for one in each.result())
    audit = Audit(url)
    if wrong := audit.violations():
        raise SystemExit(f"{variant}: {wrong}")
    if len(audit.slices()) != len(took_ms):
        raise SystemExit(f"{variant}: {len(took_ms)} claims confirmed, {len(audit.slices())} stored")
    cluster.drop(name)
    return Turn(
        claims_per_s=len(took_ms) / options.seconds,
        p50_ms=took_ms[len(took_ms) // 2],
        p99_ms=took_ms[len(took_ms) * 99 // 100],
    )


def furnish(world: World, processes: int) -> list[list[str]]:
    """Makes more GPUs than any run fills, and returns each process's tenants."""
    for _ in range(HOSTS):
        addresses = [f"0000:{number:02x}:00.0" for number in range(GPUS_PER_HOST)]
        world.host(inventory=[gpu(address, mem_bytes=1024 * GIB, types=(1,)) for address in addresses])
    world.profile(share=1, gib=1, name="thin")
    return [[world.tenant().name for _ in range(TENANTS_PER_PROCESS)] for _ in range(processes)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    turns: dict[str, list[Turn]] = {variant: [] for variant in VARIANTS}
    with Cluster.started() as cluster:
        for number in range(options.rounds):
            for variant in VARIANTS:
                name = f"{variant.replace('-', '_')}_{number}"
                turns[variant].append(turn(cluster, variant, name, options))
    print(
        f"{options.processes} processes, {TENANTS_PER_PROCESS} tenants each, {HOSTS * GPUS_PER_HOST} GPUs on {HOSTS}"
        f" hosts; {options.rounds} rounds of {options.seconds:g} s, seed {options.seed}; {os.cpu_count()} cores;"
        " medians over the rounds"
    )
    print(f"{'':12} {'claims/s':>9} {'(least..most)':>15} {'p50 ms':>8} {'p99 ms':>8}")
    for variant, runs in turns.items():
        rates = sorted(run.claims_per_s for run in runs)
        spread = f"({rates[0]:.0f}..{rates[-1]:.0f})"
        p50, p99 = (statistics.median(times) for times in zip(*((run.p50_ms, run.p99_ms) for run in runs), strict=True))
        print(f"{variant:12} {statistics.median(rates):9.0f} {spread:>15} {p50:8.1f} {p99:8.1f}")


if __name__ == "__main__":
    main()
