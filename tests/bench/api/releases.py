# SPDX-License-Identifier: Apache-2.0
"""The end of claims: a tenant deletes a claim, its host reads the desired state and reports the device absent."""

import asyncio
import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID, uuid4

import psycopg

from tests.api.world import absent, gpu
from tests.bench.api import claims, fleet
from tests.bench.api.claims import DisagreementError
from tests.bench.api.fleet import TYPES_GIB, Fleet
from tests.bench.api.load import ANSWER_S, Connection, Tally, message
from tests.bench.api.sizes import Bench
from vgpumgr.wire.fleet import Desired, Report, ReportedGroup

STEPS = ("delete", "desired state", "report")
BOOT = uuid4()

Claim = tuple[UUID, str, str]
"""A slice, its tenant and its host."""
Inventories = dict[str, list[tuple[str, int]]]
"""Addresses and memory of GPUs, by host."""


class _OtherAnswerError(Exception):
    """An unexpected answer: this release goes no further."""


def measure(bench: Bench) -> dict[str, Any]:
    """Measures with one client and with several, on the whole fleet. Each host is used at most once, because it has one
    agent.
    """
    whole = bench.whole
    left, inventories = iter(_one_of_each_host(whole)), _inventories(whole)
    rows: dict[str, Any] = {}
    ended: list[UUID] = []
    for clients in (1, bench.sizes.several):
        tallies = asyncio.run(_run(bench, clients, left, inventories, ended))
        for step, tally in tallies.items():
            rows[f"{step}, {clients} clients"] = {
                "answers": len(tally.took_ms),
                "others": len(tally.took_ms) - tally.done,
                "p50 ms": round(tally.quantile_ms(0.5), 3),
                "p99 ms": round(tally.quantile_ms(0.99), 3),
            }
    fleet.keep_online(whole.url)
    _require_gone(whole, ended)
    claims.require_agreement(whole)
    return {"figures": {f"ends of claims, {whole.gpus} GPUs": rows}, "targets": []}


def _one_of_each_host(whole: Fleet) -> list[Claim]:
    """Returns one slice of each host, in an order unrelated to the fleet's."""
    with psycopg.connect(whole.url) as connection:
        rows = connection.execute(
            "SELECT * FROM (SELECT DISTINCT ON (h.id) s.id, t.name, h.name AS host FROM slices s"
            " JOIN tenants t ON t.id = s.tenant_id JOIN gpus g ON g.id = s.gpu_id JOIN hosts h ON h.id = g.host_id"
            " WHERE s.state = 'claimed' AND h.name <> 'host-0' ORDER BY h.id, s.id) AS one ORDER BY id"
        )
        return [(row[0], row[1], row[2]) for row in rows]


async def _run(
    bench: Bench, clients: int, left: Iterator[Claim], inventories: Inventories, ended: list[UUID]
) -> dict[str, Tally]:
    whole = bench.whole
    tallies = {step: Tally(bench.sizes.seconds) for step in STEPS}
    until_s = time.perf_counter() + bench.sizes.seconds

    async def client(number: int) -> None:
        connection = await Connection.opened(bench.addresses[number % len(bench.addresses)])

        async def ask(step: str, method: str, path: str, token: str, body: bytes = b"") -> bytes:
            sent_s = time.perf_counter()
            answer = await connection.ask(message(method, path, token, body))
            tallies[step].note(answer, sent_s)
            if answer.status >= 300:
                raise _OtherAnswerError
            return answer.body

        while time.perf_counter() < until_s and (claim := next(left, None)) is not None:
            one, tenant, host = claim
            own = f"/v1/hosts/{host}"
            with contextlib.suppress(_OtherAnswerError):
                async with asyncio.timeout(ANSWER_S):
                    await ask("delete", "DELETE", f"/v1/slices/{one}", whole.tenants[tenant])
                    wanted = await ask("desired state", "GET", f"{own}/desired", whole.hosts[host])
                    said = _report(Desired.model_validate_json(wanted), inventories[host]).model_dump_json().encode()
                    taken = await ask("report", "POST", f"{own}/report", whole.hosts[host], said)
                if not json.loads(taken)["accepted"]:
                    raise DisagreementError(f"a report of {host} was not accepted")
                ended.append(one)
        connection.close()

    await asyncio.gather(*map(client, range(clients)))
    return tallies


def _inventories(whole: Fleet) -> Inventories:
    found: Inventories = defaultdict(list)
    with psycopg.connect(whole.url) as connection:
        for host, address, mem_bytes in connection.execute(
            "SELECT h.name, g.address, g.mem_bytes FROM gpus g JOIN hosts h ON h.id = g.host_id"
        ):
            found[host].append((address, mem_bytes))
    return found


def _report(desired: Desired, inventory: Sequence[tuple[str, int]]) -> Report:
    """Returns a report in which exactly the desired devices exist."""
    nothing = dict.fromkeys(ReportedGroup.model_fields, 0)
    groups = [
        ReportedGroup.model_validate(nothing | group.model_dump(include=set(nothing))) for group in desired.groups
    ]
    there = [
        absent(one.id, generation=one.generation, present=True, open=True, vm_uuid=one.vm_uuid)
        for one in desired.slices
    ]
    return Report(
        boot_id=BOOT,
        agent_epoch=2,
        seq=1,
        agent_version="1",
        desired_epoch=desired.epoch,
        desired_generation=desired.generation,
        gpus=[gpu(address, mem_bytes=mem_bytes, types=TYPES_GIB) for address, mem_bytes in inventory],
        groups=groups,
        slices=there + [absent(one.id, generation=one.generation) for one in desired.tombstones],
        refusals=[],
    )


def _require_gone(whole: Fleet, ended: Sequence[UUID]) -> None:
    with psycopg.connect(whole.url) as connection:
        row = connection.execute("SELECT count(*) FROM slices WHERE id = ANY(%s)", [list(ended)]).fetchone()
    if row != (0,):
        raise DisagreementError(f"of {len(ended)} slices whose hosts confirmed that they are gone there are {row}")
