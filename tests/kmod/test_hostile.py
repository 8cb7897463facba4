# SPDX-License-Identifier: Apache-2.0
"""What a hostile guest can send: its own slice stops, its neighbour does not notice."""

import pytest

from tests.rig.client import client
from tests.rig.gpu import Gpu


def test_every_malformed_thing_stops_that_slice_alone(gpu: Gpu) -> None:
    """All hostile cases against one slice, each with its own sticky error and a reset, while another one works."""
    for tenant in ("bad", "good"):
        gpu.tenant(tenant, weight=100, timeslice_us=1000)
    bad, good = gpu.slice("bad"), gpu.slice("good")
    with gpu.loaded({good: {"op": "delay", "delay_us": 200}}, seconds=20) as outcomes:
        hostile = client(bad, "hostile", "all")
        assert gpu.slice_stats(good).error == 0

    assert all(report["ok"] for report in hostile.reports if "case" in report)
    report = outcomes[0].report("name", good)
    assert (report["error"], report["mismatches"]) == (0, 0)
    assert report["saturated"]
    assert gpu.slice_stats(bad).errors >= 10


@pytest.mark.parametrize("command", ["probe", "unmap-race", "toctou", "verify"])
def test_the_client_finds_nothing_wrong(gpu: Gpu, command: str) -> None:
    """VFIO's answers and refusals; memory that goes away or changes under the device; every operation's result."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    assert client(gpu.slice("blue"), command).status == 0


@pytest.mark.parametrize("options", [[], ["--fault-first"], ["--leave"], ["--leave", "--fault-first"]])
def test_memory_that_never_answers_does_not_keep_a_process_from_ending(gpu: Gpu, options: list[str]) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    client(uuid, "freeze", "--seconds", "2", *options, timeout_s=60)
    assert client(uuid, "verify").status == 0


def test_device_memory_is_zeroed_between_users(gpu: Gpu) -> None:
    """A second open of the same slice finds zeros where the first one wrote."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    client(uuid, "saturate", "--op", "fill", "--items", "100")
    assert client(uuid, "verify").status == 0
