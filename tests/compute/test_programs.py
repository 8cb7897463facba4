# SPDX-License-Identifier: Apache-2.0
"""Unmodified programs compute the same results through a tenant as directly on the same library."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.compute.site import Site, site
from tests.compute.programs import pyopencl_suite

CONFIGURATION = '[tenants.blue]\nweight = 100\nmemory = "2G"\n'
FILES = ("wrapper", "enqueue_copy", "arrays_in_structs", "clmath", "clrandom", "algorithm", "array")
NOT_CARRIED = r"_svm[_\[]"
"""Tests of what we do not offer (docs/compute.md); the suite skips them."""
NETWORK = Path(__file__).parent / "programs" / "network.py"


@pytest.fixture(scope="module")
def running() -> Iterator[Site]:
    with site(CONFIGURATION) as running:
        yield running


@pytest.mark.parametrize("what", ["train", "infer"])
def test_tinygrads_network_computes_the_same_values(running: Site, what: str) -> None:
    command = (sys.executable, NETWORK, what, "12")
    ways = {
        tenant: json.loads(running.run(tenant, *command, environment={"DEV": "CL"}).splitlines()[-1])["values"]
        for tenant in (None, "blue")
    }
    assert len(ways[None]) == 12
    assert ways["blue"] == ways[None]


@pytest.mark.long
def test_clpeak_measures_the_device(running: Site) -> None:
    output = running.run("blue", "clpeak", "--kernel-latency", "--global-bandwidth", "--compute-sp")
    assert "Kernel launch latency" in output
    assert "Single-precision compute" in output


@pytest.mark.long
@pytest.mark.parametrize("file", FILES)
def test_pyopencls_own_tests_fail_only_where_they_fail_directly(running: Site, file: str, tmp_path: Path) -> None:
    directly = pyopencl_suite.outcomes(None, tmp_path / "direct.xml", f"test_{file}.py")
    through = pyopencl_suite.outcomes(running.command("blue", ()), tmp_path / "tenant.xml", f"test_{file}.py")
    assert directly, "the suite did not run"
    worse = {
        name: (outcome, through.get(name, "not reached"))
        for name, outcome in directly.items()
        if through.get(name) != outcome
    }
    skipped = {name for name, ways in worse.items() if ways == ("passed", "skipped") and re.search(NOT_CARRIED, name)}
    assert {name: worse[name] for name in worse.keys() - skipped} == {}
