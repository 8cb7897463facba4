# SPDX-License-Identifier: Apache-2.0
"""Claims of one client alone, and beside another client that asks for large pages on many connections without pause."""

import contextlib
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tests.bench.api import claims, servers
from tests.bench.api.load import Address, Tally, closed_loop, message
from tests.bench.api.sizes import Bench
from tests.bench.sched.result import target

WANTED = 3.0
"""The p99 of a claim beside the greedy client, divided by that of a client alone."""

PAGE = "/v1/slices?page_size=1000"
AHEAD_S = 1.0
"""The greedy client starts this long before claims are counted."""


def measure(bench: Bench) -> dict[str, Any]:
    """Measures the cases in turns, with the API's default limits and one process, so that all clients share it."""
    limits = {"token_requests_per_s": 500, "tenant_requests_per_s": 1000, "tenant_requests_at_once": 8}
    greedy = {
        "beside an operator's": bench.whole.operator,
        "beside a tenant's": list(bench.whole.tenants.values())[-1],
    }
    runs: dict[str, list[tuple[Tally, Tally | None]]] = {name: [] for name in ("alone", *greedy)}
    directory = bench.directory / "bystander"
    with servers.replicas(directory, bench.whole.url, count=1, settings=limits) as one:
        claims.warm(bench, bench.whole, one)
        for _ in range(bench.sizes.rounds):
            for name, taken in runs.items():
                with _asking(bench, one, greedy.get(name)) as pages:
                    make = claims.maker(bench.whole, tenants=1)
                    tally = closed_loop(one.addresses, 1, bench.sizes.seconds, make)
                taken.append((tally, pages[0] if pages else None))
    claims.require_agreement(bench.whole)
    rows = {name: _figures(taken) for name, taken in runs.items()}
    alone = rows["alone"]["p99 ms"]
    return {
        "figures": {f"claims of one client, {bench.whole.gpus} GPUs": rows},
        "targets": [_target(name, rows[name]["p99 ms"] / max(alone, 1e-9)) for name in greedy],
    }


@contextlib.contextmanager
def _asking(bench: Bench, one: servers.Replicas, token: str | None) -> Iterator[list[Tally]]:
    """Runs the greedy client; at the end, the list holds its tally.

    It runs in another process: as a thread, it would delay the measured client and not only the API.
    """
    pages: list[Tally] = []
    if token is None:
        yield pages
        return
    seconds = bench.sizes.seconds + 2 * AHEAD_S
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        process.submit(int).result()  # wait for the process, so that it asks from the beginning of AHEAD_S
        asked = process.submit(_ask_greedily, one.addresses, bench.sizes.greedy, seconds, message("GET", PAGE, token))
        time.sleep(AHEAD_S)
        began_s = time.monotonic()
        yield pages
        ended_s = time.monotonic()
        first_s, last_s, tally = asked.result()
        if not first_s <= began_s <= ended_s <= last_s:
            raise claims.DisagreementError("the greedy client did not ask all the time, so claims were partly alone")
        pages.append(tally)


def _ask_greedily(
    addresses: Sequence[Address], connections: int, seconds: float, said: bytes
) -> tuple[float, float, Tally]:
    """Return when it began and ended, by the monotonic clock that processes share, and the tally."""
    began_s = time.monotonic()
    tally = closed_loop(addresses, connections, seconds, lambda _: said)
    return began_s, time.monotonic(), tally


def _figures(taken: list[tuple[Tally, Tally | None]]) -> dict[str, float]:
    """Computes the figures of all rounds together."""
    all_of = Tally(sum(tally.seconds for tally, _ in taken))
    for tally, _ in taken:
        all_of.took_ms += tally.took_ms
        all_of.statuses += tally.statuses
    pages = [each for _, each in taken if each is not None]
    asked_s = sum(each.seconds for each in pages) or 1.0
    row = {
        "claims": all_of.done,
        "refused": len(all_of.took_ms) - all_of.done,
        "p50 ms": all_of.quantile_ms(0.5),
        "p99 ms": all_of.quantile_ms(0.99),
        "pages/s": sum(each.done for each in pages) / asked_s,
        "refused pages/s": sum(len(each.took_ms) - each.done for each in pages) / asked_s,
    }
    return {name: round(value, 3) for name, value in row.items()}


def _target(name: str, times: float) -> dict[str, Any]:
    return target(
        f"p99 of a claim {name} token on {PAGE}, times that alone", f"<= {WANTED:g}", times, met=times <= WANTED
    )
