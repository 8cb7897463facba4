# SPDX-License-Identifier: Apache-2.0
"""`host observe` with a recording from the test."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Cli
from vgpumgr.observer import trace
from vgpumgr.observer.trace import EndedRun, Recording

GPU = "0000:00:10.0"


def run(number: int, *, counted_ns: int) -> EndedRun:
    return EndedRun(
        gpu=GPU,
        tenant="blue",
        slice="",
        start_ns=0,
        length_ns=1000,
        timeslice_ns=900,
        run=number,
        run_ns=counted_ns,
        reason="timeslice",
    )


def record(monkeypatch: pytest.MonkeyPatch, cli: Cli, recording: Recording) -> None:
    @contextmanager
    def recorded(*, tracing: Path) -> Iterator[Recording]:
        assert tracing == cli.root / "sys/kernel/tracing"
        yield recording

    monkeypatch.setattr(trace, "recorded", recorded)


def test_sums_that_agree_are_a_success(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    record(monkeypatch, cli, Recording((run(1, counted_ns=50), run(2, counted_ns=1050))))
    result = cli("host", "observe", "--seconds", "3")
    assert cli.slept_s == [3]
    assert result.status == 0
    assert result.out.splitlines()[1].split() == [GPU, "blue", "100.00%", "1000", "0", "0", "1", "1000", "100", "agree"]


def test_a_difference_is_a_failure_that_says_by_how_much(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    record(monkeypatch, cli, Recording((run(1, counted_ns=50), run(2, counted_ns=1052))))
    result = cli("host", "observe")
    assert result.status == 1
    assert "differ by 2 ns" in result.out
    assert "1000 ns and 0 ns of holds were recorded, 1002 ns counted" in result.err


def test_what_was_not_recorded_is_a_failure(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    record(monkeypatch, cli, Recording((run(1, counted_ns=50),), lost=4))
    result = cli("host", "observe", "-o", "json")
    assert result.status == 1
    assert json.loads(result.out)["lost"] == 4


def test_without_tracing_it_says_what_it_takes(cli: Cli) -> None:
    result = cli("host", "observe")
    assert result.status == 1
    assert "takes root and a mounted tracefs" in result.err
