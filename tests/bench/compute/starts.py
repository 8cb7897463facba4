# SPDX-License-Identifier: Apache-2.0
"""The time from the start of a program to its first result: for a tenant's first program, and for later ones with the
same sources.

The programs' own caches are off. The library that is used directly has its cache on disk, which is empty for the first
program.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from tests.bench.compute.site import ROOT, Site, site
from tests.bench.sched.result import digest, target

CONFIGURATION = "[tenants.alone]\nweight = 100\n"
PROGRAMS = ROOT / "tests" / "compute" / "programs"
WORDS = {
    "pyopencl, one source": ("adding.py",),
    "tinygrad, a network": ("network.py", "infer", "1"),
}
OWN_CACHES_OFF = {"DEV": "CL", "CCACHE": "0", "PYOPENCL_NO_CACHE": "1"}
TURNS, AGAIN = 3, 3
MOST = 1.5


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Measure each program, directly and through a tenant of a new broker."""
    table: dict[str, dict[str, float]] = {}
    targets = []
    for name, words in WORDS.items():
        took_s: dict[str, list[float]] = {}
        for _ in range(1 if quick else TURNS):
            with site(CONFIGURATION) as running, tempfile.TemporaryDirectory() as cache:
                for way, tenant in (("directly", None), ("a tenant", "alone")):
                    for nth in range(1 + AGAIN):
                        when = "again" if nth else "first"
                        took_s.setdefault(f"{way}, {when}", []).append(once(running, tenant, cache, words))
        table[name] = {way: round(statistics.median(times), 2) for way, times in took_s.items()}
        ratio = table[name]["a tenant, again"] / table[name]["directly, again"]
        targets.append(target(f"{name}: again, of directly", f"<= {MOST}", ratio, met=ratio <= MOST))
    return {
        "name": "From the start of a program to its first result",
        "command": "make bench-compute",
        "model": "PoCL, whose threads and compilers run on the processors of this machine",
        "seeds": [],
        "baselines": ["the same program on the same library, directly"],
        "hashes": {words[0]: digest((PROGRAMS / words[0]).read_text()) for words in WORDS.values()},
        "figures": {"s": table},
        "targets": targets,
        "losing": ["a program that is its tenant's first pays for a compiler process for each source"],
    }


def once(running: Site, tenant: str | None, cache: str, words: tuple[str, ...]) -> float:
    """Return the seconds until the program's first line."""
    command = [sys.executable, str(PROGRAMS / words[0]), *words[1:]]
    if tenant:
        command = running.command(tenant, command)
    environment = {**os.environ, **OWN_CACHES_OFF, "POCL_CACHE_DIR": cache}
    began_s = time.monotonic()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment) as program:
        assert program.stdout is not None
        line = program.stdout.readline()
        took_s = time.monotonic() - began_s
        program.stdout.read()
    if program.returncode or not line:
        raise subprocess.CalledProcessError(program.returncode, command)
    return took_s
