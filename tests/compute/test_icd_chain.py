# SPDX-License-Identifier: Apache-2.0
"""The client's library through broker, supervisor and child gives the same results as the OpenCL library itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.compute.site import Site, site
from tests.compute.icd_rig import BUILT, LIMIT_S, ROOT, compile_c, make

PARTS = (
    "objects",
    "buffers",
    "order",
    "rects",
    "access",
    "parts",
    "kernels",
    "images",
    "programs",
    "includes",
    "events",
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = ROOT / "tests" / "compute" / "c" / "api_client.c"
    return compile_c(tmp_path_factory.mktemp("client") / "api_client", str(source), "-lOpenCL")


@pytest.fixture(scope="module")
def running() -> Iterator[Site]:
    make(*(BUILT / name for name in ("libvgpu-opencl.so", "vgpu-child", "vgpu-supervisor", "vgpu-broker")))
    with site("[tenants.blue]\n") as running:
        yield running


@pytest.fixture(scope="module")
def direct(program: Path) -> dict[str, list[str]]:
    """The direct results of the OpenCL library, by part."""
    environment = {key: value for key, value in os.environ.items() if key != "VGPUMGR_SOCKET"}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return split(done.stdout)


@pytest.fixture(scope="module")
def ours(program: Path, running: Site) -> dict[str, list[str]]:
    return split(running.run("blue", program))


def split(output: str) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    for line in output.splitlines():
        if line.startswith("== "):
            parts[line[3:]] = []
        elif parts:
            parts[list(parts)[-1]].append(line)
    return parts


@pytest.mark.parametrize("part", PARTS)
def test_results_are_those_of_the_library_itself(
    part: str, direct: dict[str, list[str]], ours: dict[str, list[str]]
) -> None:
    assert ours[part] == direct[part]


def test_an_event_that_fails_takes_along_what_waits_for_it(program: Path, running: Site) -> None:
    assert split(running.run("blue", program, "failures"))["failures"] == [
        "clWaitForEvents(1, &events[1]): -14",
        "failed 1",
        "clWaitForEvents(1, events): -14",
        "untouched be9c9dc5",
        "done",
    ]


@pytest.mark.parametrize("scenario", ["fork", "callbacks", "threads", "flood"])
def test_forks_callbacks_and_threads_work_with_a_real_child(
    scenario: str, running: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    client = tmp_path_factory.getbasetemp() / "icd_client"
    if not client.exists():
        compile_c(client, str(ROOT / "tests" / "compute" / "c" / "icd_client.c"), "-lOpenCL")
    assert running.run("blue", client, scenario).splitlines()[-1] == "done"


@pytest.mark.long
def test_memory_larger_than_the_window_is_moved_in_pieces(program: Path, running: Site) -> None:
    direct = subprocess.run([program, "large"], capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
    assert split(running.run("blue", program, "large")) == split(direct)


def test_what_kernels_print_comes_out_of_the_program(ours: dict[str, list[str]]) -> None:
    assert sorted(ours["print"]) == [f"kernel 42 of {number}" for number in range(3)]
