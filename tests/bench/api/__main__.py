# SPDX-License-Identifier: Apache-2.0
"""The API at fleet scale on one machine: tables on standard output, and build/bench/api.json.

    python -m tests.bench.api [--only NAME ...] [--small] [--strict]

Runs on a private PostgreSQL that waits for the disk, with two API processes by ``vgpumgr-api serve``. The output ends
with all targets, met or missed; a target that could not be measured counts as missed. A missed target is a failure only
with --strict.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.api import (
    bystander,
    claims,
    fleet,
    growth,
    heartbeats,
    kinds,
    lists,
    openstack,
    peers,
    processor,
    releases,
    servers,
    streams,
    watchers,
)
from tests.bench.api.sizes import FULL, SMALL, Bench
from tests.bench.sched.__main__ import ROOT, empty_document
from tests.bench.sched.result import table_lines, target, verdict

OUTPUT = ROOT / "build" / "bench" / "api.json"
PLACEMENT = ROOT / "build" / "bench" / "placement"
FORMAT = "vgpumgr.bench-api/1"

Experiment = Callable[[Bench], dict[str, Any]]

# The order matters: the claims of one experiment fill the fleet of the next.
EXPERIMENTS: dict[str, Experiment] = {
    "lists": lists.measure,
    "claims": claims.measure,
    "growth": growth.measure,
    "kinds": kinds.measure,
    "releases": releases.measure,
    "bystander": bystander.measure,
    "heartbeats": heartbeats.measure,
    "watchers": watchers.measure,
    "events": streams.measure,
    "placement": lambda bench: peers.measure(bench, PLACEMENT),
}


def run(names: list[str], *, small: bool) -> dict[str, Any]:
    """Runs the experiments, prints each table when it is ready, and returns everything that is kept."""
    sizes = SMALL if small else FULL
    document = {**empty_document(quick=small), "format": FORMAT, "workers": sizes.workers}
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(servers.postgresql())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vgpumgr-bench-")))
        began_s = time.monotonic()
        whole = fleet.loaded(cluster.create("whole"), sizes.hosts)
        seconds = time.monotonic() - began_s
        document |= {"hosts": len(whole.hosts), "gpus": whole.gpus, "slices": whole.slices}
        print(f"{len(whole.hosts)} hosts, {whole.gpus} GPUs, {whole.slices} slices in {seconds:.0f} s")
        replicas = stack.enter_context(servers.replicas(directory / "whole", whole.url, count=sizes.workers))
        bench = Bench(sizes=sizes, cluster=cluster, directory=directory, whole=whole, replicas=replicas)
        for name in names:
            document["experiments"][name] = result = measured(name, bench)
            show(name, result)
    return document


def measured(name: str, bench: Bench) -> dict[str, Any]:
    """Runs an experiment. An experiment that cannot run counts as a missed target."""
    began_s, load, yardstick_ms = time.monotonic(), os.getloadavg()[0], processor.yardstick_ms()
    try:
        result = EXPERIMENTS[name](bench)
    except openstack.NotInstallableError as error:
        result = {
            "figures": {},
            "targets": [target(f"{name} measured", "1", 0, met=False)],
            "skipped": f"no OpenStack Placement to compare with: {error}",
        }
    return result | {
        "seconds": round(time.monotonic() - began_s, 1),
        "load": [load, os.getloadavg()[0]],
        "yardstick_ms": [yardstick_ms, processor.yardstick_ms()],
    }


def show(name: str, result: dict[str, Any]) -> None:
    """Prints a table for people on standard output."""
    load, yardstick_ms = result["load"], result["yardstick_ms"]
    print(
        f"\n{name}: {result['seconds']} s, load {load[0]:.1f} to {load[1]:.1f},"
        f" yardstick {yardstick_ms[0]:.0f} to {yardstick_ms[1]:.0f} ms"
    )
    if "skipped" in result:
        print(f"  not measured: {result['skipped']}")
    for table, rows in result["figures"].items():
        lines = table_lines(table, rows)
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        for line in lines:
            print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-api", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS, metavar="NAME", help=f"of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--small", action="store_true", help="only see that all of it runs")
    parser.add_argument("--strict", action="store_true", help="fail if a target is missed")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the JSON file")
    options = parser.parse_args(arguments)

    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # PostgreSQL and the servers end as well
    document = run(options.only or list(EXPERIMENTS), small=options.small)
    targets = [one for result in document["experiments"].values() for one in result["targets"]]
    print("\ntargets" + (" (small: the figures mean nothing)" if options.small else ""))
    for one in targets:
        print(f"  {verdict(one)}")
    missed = sum(not one["met"] for one in targets)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\n{missed} missed; all figures: {options.output}")
    return 1 if options.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
