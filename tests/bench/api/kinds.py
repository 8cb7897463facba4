# SPDX-License-Identifier: Apache-2.0
"""Claims with more conditions than a place, and claims that no GPU can take, which get the reasons of all GPUs."""

import json
import uuid
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from tests.api.world import GIB
from tests.bench.api import claims, fleet, servers
from tests.bench.api.claims import DisagreementError, Run
from tests.bench.api.fleet import POOL, RARE, one_rare_of
from tests.bench.api.load import ask_once, closed_loop, message
from tests.bench.api.sizes import Bench
from tests.bench.sched.result import target

TENANTS = 50
"""The number of tenants that claim: few, so that each has many slices of one anti-affinity."""
GROUP = 16
"""This many slices of a tenant share one anti-affinity, and no two of them are on one host."""
TOO_LARGE = {"name": "too-large", "share_permille": 50, "mem_bytes": 16 * GIB}
"""A profile that no GPU has a type for."""
GRANTED, REFUSED = 201, 409
ANY = "any GPU"
CORDONED = {
    "any GPU, half of the hosts cordoned and less used": fleet.LESS_PERMILLE,
    "any GPU, half of the hosts cordoned and more used": fleet.MORE_PERMILLE,
}
WANTED = 1.3

Asked = Mapping[str, Any]
"""The members that a claim adds to tenant, profile and VM, or replaces."""


def measure(bench: Bench) -> dict[str, Any]:
    """Measures each kind with one client and with several, on the whole fleet."""
    whole = bench.whole
    _make(bench, TOO_LARGE)
    claims.warm(bench, whole, bench.replicas)
    granted: dict[str, Callable[[int], Asked]] = {
        ANY: lambda _: {},
        **dict.fromkeys(CORDONED, lambda _: {}),
        f"selects 1 of {one_rare_of(len(whole.hosts))} hosts by a label": lambda _: {"selector": {POOL: RARE}},
        f"anti-affinity of {GROUP} slices by host": _apart(uuid.uuid4().hex),
    }
    refused: dict[str, Callable[[int], Asked]] = {
        "refused: no type so large": lambda _: {"profile": TOO_LARGE["name"]},
        "refused: no GPU has the label": lambda _: {"selector": {POOL: "none"}},
    }
    rows: dict[str, Any] = {}
    for name, asked in (granted | refused).items():
        with fleet.half_cordoned(whole.url, CORDONED[name]) if name in CORDONED else nullcontext():
            for clients in (1, bench.sizes.several):
                run = _counted(bench, clients, asked)
                rows[f"{name}, {clients} clients"] = _figures(run, GRANTED if name in granted else REFUSED)
    claims.require_agreement(whole)
    return {
        "figures": {f"claims of several kinds, {whole.gpus} GPUs": rows},
        "targets": [_target(rows, kind, clients) for kind in CORDONED for clients in (1, bench.sizes.several)],
    }


def _target(rows: Mapping[str, Mapping[str, float]], kind: str, clients: int) -> dict[str, Any]:
    cost = claims.cost(rows[f"{kind}, {clients} clients"], rows[f"{ANY}, {clients} clients"])
    what = f"processor time of a claim, {kind}, times that with none, {clients} clients"
    return target(what, f"<= {WANTED}", cost, met=cost <= WANTED)


def _make(bench: Bench, profile: Mapping[str, Any]) -> None:
    said = message("POST", "/v1/profiles", bench.whole.operator, json.dumps(profile).encode())
    answer = ask_once(bench.addresses[0], said)
    if answer.status != GRANTED:
        raise DisagreementError(f"no profile: {answer.body!r}")


def _apart(name: str) -> Callable[[int], Asked]:
    """Returns the anti-affinity of a claim. Tenants take turns, so a tenant's claims are as far apart as there are
    tenants.
    """
    return lambda number: {"anti_affinity": {"key": f"{name}-{number // (TENANTS * GROUP)}", "level": "host"}}


def _counted(bench: Bench, clients: int, asked: Callable[[int], Asked]) -> Run:
    before = servers.counts(bench.cluster, bench.whole.name, bench.replicas)
    make = claims.maker(bench.whole, asked, tenants=TENANTS)
    tally = closed_loop(bench.addresses, clients, bench.sizes.seconds, make, most=bench.sizes.claims_of_kind)
    return tally, servers.counts(bench.cluster, bench.whole.name, bench.replicas) - before


def _figures(run: Run, status: int) -> dict[str, float]:
    """Returns figures of all answers; `others` are answers with another status than this kind's, such as
    database.busy.
    """
    tally, counts = run
    answered = len(tally.took_ms)
    row = {
        "answers/s": answered / tally.seconds,
        "p50 ms": tally.quantile_ms(0.5),
        "p99 ms": tally.quantile_ms(0.99),
        "statements": counts.statements / answered,
        "database ms": counts.exec_ms / answered,
        **counts.cpu_ms(answered),
    }
    expected = tally.statuses[status] - sum(
        times for said, times in tally.refusals.items() if status == REFUSED and b'"capacity.none"' not in said
    )
    rounded = {name: round(value, 3) for name, value in row.items()}
    return {"answers": answered, "others": answered - expected, **rounded}
