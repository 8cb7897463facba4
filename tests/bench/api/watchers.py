# SPDX-License-Identifier: Apache-2.0
"""Agents that wait for their desired state while claims change it: the time until each learns of its change."""

import asyncio
import json
import random
import time
import uuid
from collections.abc import Sequence
from typing import Any

from tests.bench.api.fleet import PROFILE, Fleet
from tests.bench.api.load import ANSWER_S, Address, Connection, message
from tests.bench.api.sizes import Bench

WAIT_S = 60
CLAIMS_PER_S = 20
# An API that has accepted all waiting requests answers this fast, so often in a row. On a busy machine this may never
# happen.
QUIET_S = 0.05
QUIET_ANSWERS = 20
QUIET_WITHIN_S = 10


def measure(bench: Bench) -> dict[str, Any]:
    """This many hosts wait; now and then one of them gets a slice."""
    waits_ms, opened_s = asyncio.run(_fan_out(bench, bench.whole, bench.addresses))
    ordered = sorted(waits_ms)
    row = {
        "changes": len(ordered),
        "p50 ms": round(ordered[len(ordered) // 2], 1),
        "p99 ms": round(ordered[len(ordered) * 99 // 100], 1),
        "all waiting after s": round(opened_s, 2),
    }
    return {
        "figures": {"from a claim's answer until its host has the document": {f"{bench.sizes.watchers} hosts": row}},
        "targets": [],
    }


async def _fan_out(bench: Bench, whole: Fleet, addresses: Sequence[Address]) -> tuple[list[float], float]:
    hosts = list(whole.hosts.items())[: bench.sizes.watchers]
    claimed_s: dict[str, float] = {}
    heard_s: dict[str, float] = {}
    waiting = asyncio.Semaphore(0)

    async def watch(number: int) -> None:
        name, token = hosts[number]
        connection = await Connection.opened(addresses[number % len(addresses)])
        first = await connection.ask(message("GET", f"/v1/hosts/{name}/desired", token))
        seen = json.loads(first.body)
        query = f"epoch={seen['epoch']}&generation={seen['generation']}&wait_s={WAIT_S}"
        asked = asyncio.create_task(connection.ask(message("GET", f"/v1/hosts/{name}/desired?{query}", token)))
        waiting.release()
        answer = await asked
        heard_s[name] = time.perf_counter()
        assert answer.status in (200, 204), answer.body
        connection.close()

    async def claim(connection: Connection, host: str) -> None:
        tenant, token = random.choice(list(whole.tenants.items()))
        body = {"tenant": tenant, "profile": PROFILE, "host": host, "vm_uuid": str(uuid.uuid4())}
        answer = await connection.ask(message("POST", "/v1/slices", token, json.dumps(body).encode()))
        if answer.status == 201:  # a host may be full
            claimed_s[host] = time.perf_counter()

    begun_s = time.perf_counter()
    async with asyncio.timeout(2 * WAIT_S + ANSWER_S), asyncio.TaskGroup() as group:
        watchers = [group.create_task(watch(number)) for number in range(len(hosts))]
        for _ in hosts:
            await waiting.acquire()
        for address in addresses:
            await _quiet(address, *hosts[0])
        opened_s = time.perf_counter() - begun_s
        connection = await Connection.opened(addresses[0])
        for name, _ in random.sample(hosts, min(len(hosts), int(bench.sizes.seconds * CLAIMS_PER_S))):
            await claim(connection, name)
            await asyncio.sleep(1 / CLAIMS_PER_S)
        while any(name not in heard_s for name in claimed_s):
            await asyncio.sleep(0.05)
        connection.close()
        for each in watchers:
            each.cancel()
    return [(heard_s[name] - when) * 1000 for name, when in claimed_s.items()], opened_s


async def _quiet(address: Address, host: str, token: str) -> None:
    """Waits until the API has read all waiting requests, because a waiting request gets no answer."""
    connection = await Connection.opened(address)
    in_a_row = 0
    until_s = time.perf_counter() + QUIET_WITHIN_S
    while in_a_row < QUIET_ANSWERS and time.perf_counter() < until_s:
        asked_s = time.perf_counter()
        await connection.ask(message("GET", f"/v1/hosts/{host}/desired", token))
        in_a_row = in_a_row + 1 if time.perf_counter() - asked_s < QUIET_S else 0
    connection.close()
