# SPDX-License-Identifier: Apache-2.0
"""How the API's benchmark reports what it could not measure, and how it counts and compares."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bench.api import __main__ as program
from tests.bench.api import claims, fleet, growth, load, openstack, peers, processor, servers
from tests.bench.api.sizes import SMALL, Bench
from tests.bench.api.streams import Watcher
from tests.bench.sched.result import target


def without_placement(_bench: Any) -> dict[str, Any]:
    raise openstack.NotInstallableError("no network")


def missing_its_target(_bench: Any) -> dict[str, Any]:
    return {"figures": {}, "targets": [target("claims/s", ">= 300", 299, met=False)]}


def run(names: list[str], *, small: bool) -> dict[str, Any]:
    """Do what the program does, but without servers."""
    assert small
    return {"experiments": {name: program.measured(name, None) for name in names}}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("experiment", "left"),
    [(without_placement, 1), (missing_its_target, 1), (lambda _: {"figures": {}, "targets": []}, 0)],
)
def test_strict_fails_for_what_was_missed_or_skipped(
    experiment: Any, left: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "EXPERIMENTS", {"placement": experiment})
    monkeypatch.setattr(program, "run", run)
    options = ["--small", "--output", str(tmp_path / "api.json")]
    assert program.main(options) == 0
    assert program.main([*options, "--strict"]) == left
    assert f"\n{left} missed" in capsys.readouterr().out


def test_a_peer_without_a_claim_is_no_target_that_is_met() -> None:
    targets = peers.targets(40, ours=500.0, theirs={1000: 0.0, 5: 4.0})
    assert [(each["value"], each["met"]) for each in targets] == [(0.0, False), (125.0, True)]


def test_watchers_know_what_they_missed_and_what_came_again() -> None:
    watcher = Watcher(position=3)
    for number in (4, 5, 7, 7, 6, 8):
        watcher.take(number)
    assert (watcher.position, watcher.lost, watcher.again) == (8, 1, 2)


BURN = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\n"


def test_processor_time_is_that_of_the_whole_family_the_dead_included() -> None:
    """A shell that uses almost no time, with one child that has ended and one that still runs."""
    both = ["sh", "-c", '"$0" -c "$1" && "$0" -c "$2"', sys.executable, BURN, f"{BURN}input()"]
    process = subprocess.Popen(both, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [b"\n", b"\n"]
    used_s = processor.used_s([process.pid])
    process.communicate(b"\n")
    assert used_s >= 0.36  # each uses 0.2 s, rounded to ticks


@contextlib.contextmanager
def counting() -> Iterator[tuple[load.Address, list[int]]]:
    """A server that records the client port of each request."""
    ports: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            ports.append(self.client_address[1])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield ("127.0.0.1", server.server_address[1]), ports
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("anew", "connections"), [(False, 3), (True, 10)])
def test_clients_ask_no_more_than_they_may_on_connections_that_are_kept_or_not(*, anew: bool, connections: int) -> None:
    said = load.message("GET", "/", "token")
    with counting() as (address, ports):
        tally = load.closed_loop([address], 3, 60, lambda _: said, most=10, anew=anew)
    assert (tally.done, len(ports), len(set(ports))) == (10, 10, connections)


def test_growth_treats_both_fleets_alike_and_judges_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each turn both fleets get new, warmed processes, and the order changes. The clients' own time does not
    count.
    """
    told: list[tuple[str, str, Any]] = []

    @contextlib.contextmanager
    def replicas(_directory: Path, url: str, *, count: int) -> Iterator[servers.Replicas]:
        told.append(("started", url, count))
        yield servers.Replicas([], [len(told)])

    def counted(_bench: Any, of: fleet.Fleet, used: servers.Replicas, clients: int, _seconds: float) -> claims.Run:
        told.append((f"measured by {clients}", of.url, used.processes))
        cost = 1.25 if of.url == "whole" else 1.0
        tally = load.Tally(1)
        tally.statuses[201] = 10
        return tally, servers.Counts(0, 0, 0, 0, cost, 3 * cost, clients_cpu_s=100 / cost)

    def of(name: str, hosts: int) -> fleet.Fleet:
        named = {f"host-{number}": "" for number in range(hosts)}
        return fleet.Fleet(url=name, name=name, hosts=named, tenants={}, operator="", slices=0)

    monkeypatch.setattr(servers, "replicas", replicas)
    monkeypatch.setattr(fleet, "loaded", of)
    monkeypatch.setattr(claims, "warm", lambda _bench, fleet, used: told.append(("warmed", fleet.url, used.processes)))
    monkeypatch.setattr(claims, "counted", counted)
    monkeypatch.setattr(claims, "require_agreement", lambda _: None)
    cluster: Any = SimpleNamespace(create=lambda name: name, drop=lambda _: None)
    bench = Bench(
        sizes=SMALL, cluster=cluster, directory=Path(), whole=of("whole", 20), replicas=servers.Replicas([], [])
    )
    targets = growth.measure(bench)["targets"]
    assert [(each["value"], each["met"]) for each in targets] == [(1.25, True), (1.25, True)]
    half = len(told) // 2
    for at, order in ((0, ["whole", "few0"]), (half, ["few1", "whole"])):
        turn = told[at : at + half]
        assert [what for what, *_ in turn] == [
            *(["started"] * 2 + ["warmed"] * 2),
            *(["measured by 1"] * 2 + ["measured by 4"] * 2),
        ]
        assert [url for _, url, _ in turn[2:]] == order * 3
        started = [[at + 1], [at + 2]]
        assert {url: used for _, url, used in turn[2:]} == dict(zip(sorted(order), started, strict=True))
