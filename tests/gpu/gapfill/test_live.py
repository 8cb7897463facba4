# SPDX-License-Identifier: Apache-2.0
"""Parts of a live run that need no GPU: where its processes run, which are watched, and which repeat is void."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.gpu.gapfill import __main__ as gapfill
from tests.gpu.gapfill import live, pairs
from tests.gpu.gapfill.gate import Role
from tests.gpu.gapfill.live import VoidRepeatError
from tests.gpu.gapfill.start import start_gate
from tests.gpu.gapfill.virtual import Sharing
from vgpumgr.errors import ProbeRefusedError

# Prints what a worker prints, without a GPU. Under the gate, it asks for nothing.
WORKER = """
import json, os, sys
print("ready", flush=True)
sys.stdin.readline()
names = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY")
print(json.dumps({"done": 1, "unnoticed": int(sys.argv[1]), "pid": os.getpid()} | {n: os.environ[n] for n in names}))
"""


def worker(unnoticed: int = 0) -> list[str]:
    return [sys.executable, "-c", WORKER, str(unnoticed)]


@pytest.mark.parametrize("way", [live.DEFAULT, live.GATE, live.STRICT])
def test_all_run_on_the_gpu_that_is_watched_and_without_mps(way: str) -> None:
    watched: list[int] = []
    with live.site("GPU-1", watched.append) as where:
        outcomes = live.shared(way, [worker(), worker()], where)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in outcomes] == ["GPU-1"] * 2
    assert {one["CUDA_MPS_PIPE_DIRECTORY"] for one in outcomes} == {where.environment["CUDA_MPS_PIPE_DIRECTORY"]}
    assert watched == [one["pid"] for one in outcomes]


def test_work_that_the_gate_did_not_notice_makes_a_repeat_void() -> None:
    with live.site("GPU-1", lambda _: None) as where, pytest.raises(VoidRepeatError, match="3 items went unnoticed"):
        live.shared(live.GATE, [worker(3), worker()], where)


@pytest.mark.parametrize(
    ("said", "void"),
    [
        ("service: gone", False),
        ("job: evicted: it lied", True),
        ("an item is overdue; the engine counts as free", True),
    ],
)
def test_what_the_gate_says_is_read(monkeypatch: pytest.MonkeyPatch, said: str, void: bool) -> None:
    def start(clients: Any, *options: str) -> Any:
        gate, links = start_gate(clients, *options)
        original = gate.communicate

        def communicate(**times: Any) -> Any:
            out, err = original(**times)
            return out + json.dumps({"at_ns": 1, "said": said}) + "\n", err

        monkeypatch.setattr(gate, "communicate", communicate)
        return gate, links

    monkeypatch.setattr(live, "start_gate", start)
    with live.site("GPU-1", lambda _: None) as where:
        if void:
            with pytest.raises(VoidRepeatError, match=said[:12]):
                live.shared(live.GATE, [worker(), worker()], where)
        else:
            live.shared(live.GATE, [worker(), worker()], where)


def test_a_gate_that_dies_makes_a_repeat_void(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any) -> Any:
        gate, links = start_gate([("service", Role.FIRST), ("job", Role.OTHER)])
        gate.kill()
        return gate, links

    monkeypatch.setattr(live, "start_gate", start)
    with live.site("GPU-1", lambda _: None) as where, pytest.raises(VoidRepeatError, match="the gate ended with -9"):
        live.shared(live.GATE, [worker(), worker()], where)


def test_void_repeats_are_left_out_and_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        way: {"mean": 1.0, "p99": 1.0, "job": 0.5, "alone ms": 1.0} for way in (live.GATE, live.STRICT, live.DEFAULT)
    }
    answers: list[Any] = [rows, VoidRepeatError("job: evicted"), rows]

    def measured(*_: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(live, "_measured", measured)
    with live.site("GPU-1", lambda _: None) as where:
        found, void = live.repeated(live.PAIRS[0], 1.0, 3, where)
        assert (len(found), void) == (2, [f"{live.PAIRS[0].name}: repeat 2 is void: job: evicted"])
        answers += [VoidRepeatError("job: evicted")]
        with pytest.raises(RuntimeError, match="every repeat is void"):
            live.repeated(live.PAIRS[0], 1.0, 1, where)


def test_one_repeat_has_no_interval() -> None:
    assert pairs.figure([1.23456]) == 1.235
    assert pairs.figure([1.0, 2.0])["n"] == 2


def test_a_target_that_is_known_to_be_missed_says_why() -> None:
    pair = pairs.PAIRS[-1]
    row = {Sharing.GATE.value: {"mean": 1.0, "p99": 1.2}}
    mean, p99 = pairs._targets({(pair.name, 1): row}, [pair], [1])
    assert mean["met"]
    assert mean["what"] == f"{pair.name}: mean"
    assert not p99["met"]
    assert p99["what"] == f"{pair.name}: p99 (known: it wants more than its reservation)"


def test_a_gpu_that_another_uses_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*, quick: bool, **_: Any) -> dict[str, Any]:
        raise ProbeRefusedError("probe.busy", f"process 1 uses the GPU, quick={quick}")

    monkeypatch.setattr(live, "why_not", lambda: None)
    monkeypatch.setattr(live, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["gapfill", "--live", "--quick"])
    assert gapfill.main() == 1
    assert capsys.readouterr().out == "on a real GPU: refused, process 1 uses the GPU, quick=True\n"


def test_what_a_live_run_is_asked_for_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(live, "why_not", lambda: None)
    monkeypatch.setattr(live, "measure", lambda **options: asked.update(options) or {"targets": []})
    monkeypatch.setattr(sys, "argv", ["gapfill", "--live", "--json", "--seconds", "2.5", "--repeats", "4"])
    assert gapfill.main() == 0
    assert (asked["quick"], asked["seconds"], asked["repeats"]) == (False, 2.5, 4)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--live", "--seconds", "0"], "--seconds: 0, at least 1"),
        (["--live", "--seconds", "nan"], "--seconds: nan, at least 1"),
        (["--live", "--seconds", "inf"], "--seconds: inf, at least 1"),
        (["--live", "--repeats", "0"], "--repeats: 0, at least 1"),
        (["--virtual", "--repeats", "3"], "--seconds, --repeats: of the GPU"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["gapfill", *words])
    with pytest.raises(SystemExit) as ended:
        gapfill.main()
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_each_way_of_sharing_is_first_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    outcome = {"latency_ns": [1_000_000], "done": 1, "unnoticed": 0}
    monkeypatch.setattr(live, "_run", lambda *_: [outcome])
    monkeypatch.setattr(live, "shared", lambda way, *_: order.append(way) or [outcome, outcome])
    with live.site("GPU-1", lambda _: None) as where:
        live.repeated(live.PAIRS[0], 1.0, len(live.WAYS), where)
    assert {order[0], order[3], order[6]} == set(live.WAYS)
    assert sorted(order) == sorted(live.WAYS * 3)
