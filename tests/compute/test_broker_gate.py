# SPDX-License-Identifier: Apache-2.0
"""What a broker reports about its tenants' gates: what enforces leases, and how long closing takes."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute.broker_rig import (
    LIMIT_S,
    Broker,
    build_fake_supervisor,
    joined,
    make_broker,
)
from tests.compute.executor_rig import EXECUTOR, GATE, wait_for
from vgpumgr.errors import BrokerRefusedError


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_broker(), build_fake_supervisor(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def broker(tmp_path: Path, programs: tuple[Path, Path]) -> Iterator[Broker]:
    with Broker(tmp_path, *programs, nvidia=2) as running:
        yield running


def test_supervisors_are_told_which_gpu_the_gate_stops(broker: Broker) -> None:
    assert broker.supervisors()["blue"].arguments.endswith(" --gate-limit-ms 100 --nvidia 2")


@pytest.mark.parametrize(
    ("enforced", "word"), [(GATE, "broker+gate"), (EXECUTOR, "executor"), (0, "unknown"), (77, "unknown")]
)
def test_who_keeps_leases_and_what_closing_takes_is_shown(broker: Broker, enforced: int, word: str) -> None:
    blue = broker.supervisors()["blue"]
    blue.enforced, blue.gate_ns = enforced, 495_000
    with joined(broker, blue):
        shown = broker.shown("blue")["supervisor"]
        assert (shown["enforced_by"], shown["gate_p99_ns"]) == (word, 495_000)
    assert broker.shown("red")["supervisor"]["enforced_by"] == "unknown"


def test_a_chunk_that_is_shorter_than_closing_takes_is_told_once(broker: Broker) -> None:
    """5 ms are configured, of which 2 ms are the grace."""
    blue = broker.supervisors()["blue"]
    for gate_ns, lines in ((3_000_000, 0), (3_000_001, 1), (4_000_000, 1)):
        blue.gate_ns = gate_ns
        with joined(broker, blue):
            assert broker.shown("blue")["supervisor"]["gate_p99_ns"] == gate_ns
        assert broker.log().count("event=chunk.short") == lines
    assert "tenant=blue event=chunk.short gate_p99_us=3000 chunk_us=5000 needed_chunk_us=5001" in broker.log()


def test_a_new_supervisor_has_said_nothing_yet(broker: Broker) -> None:
    blue = broker.supervisors()["blue"]
    blue.enforced = GATE
    with joined(broker, blue):
        assert broker.shown("blue")["supervisor"]["enforced_by"] == "broker+gate"
    blue.kill()
    again = broker.any_supervisor()
    assert again.tenant == "blue"
    wait_for(lambda: broker.shown("blue")["supervisor"]["enforced_by"] == "unknown", "its end")


def test_the_gpu_cannot_change_while_the_broker_runs(broker: Broker) -> None:
    broker.nvidia = 3
    with pytest.raises(BrokerRefusedError, match="it cannot change") as caught:
        broker.control.set(broker.settings(), generation=0)
    assert caught.value.field == "accelerator.nvidia"
    broker.nvidia = 2
    broker.control.set(broker.settings(), generation=0)


@pytest.mark.parametrize("number", [32, "0", True, [], {}])
def test_no_gpu_has_that_number(tmp_path: Path, programs: tuple[Path, Path], broker: Broker, number: object) -> None:
    broker.nvidia = number
    with pytest.raises(BrokerRefusedError) as caught:
        broker.control.set(broker.settings(), generation=0)
    assert caught.value.field == "programs.nvidia"
    (tmp_path / "other").mkdir()
    other = Broker(tmp_path / "other", *programs, nvidia=number)
    other.run = other.directory / "run"
    other.run.mkdir()
    process = other.start(json.dumps(other.settings()).encode(), stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode not in (0, None)
    assert "programs.nvidia" in said
