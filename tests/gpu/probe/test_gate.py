# SPDX-License-Identifier: Apache-2.0
"""T11 on the fake GPU: it passes if the GPU stops and continues as told, and fails for each kind of wrong behaviour."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.gpu.fakerm.fake import FakeRm
from tests.gpu.fakerm.gpu import Behaviour
from tests.gpu.probe.measured import measured
from vgpumgr.gpu import abi, duel, gate, gatekeeper
from vgpumgr.gpu.duel import RigError
from vgpumgr.gpu.enforcement import Use, gate_answer, words
from vgpumgr.gpu.shares import Effort

EFFORT = Effort(repeats=3, seconds=0.4)


def outcome(behaviour: Behaviour | None = None, **options: Any) -> dict[str, Any]:
    with FakeRm(behaviour, **options) as fake:
        return gate.run(fake.rig, effort=EFFORT)


def test_a_tenant_is_stopped_and_goes_on_and_its_neighbour_works_all_the_time() -> None:
    with FakeRm() as fake:
        found = gate.run(fake.rig, effort=EFFORT)
        log = fake.log()
    assert found["verdict"] == "pass"
    figures = found["figures"]
    assert figures["done_while_closed"] == [0, 0, 0]
    assert figures["close_us"]["count"] == figures["open_us"]["count"] == 3
    # The rest of a running kernel and one turn of the neighbour.
    assert 0 < figures["longest_resume_us"] < 10_000
    calls = [bytes.fromhex(entry["params"]) for entry in log if entry.get("cmd") == abi.DISABLE_CHANNELS]
    assert [call[0] for call in calls] == [1, 0] * 3
    assert {struct.unpack_from("=I", call, 4)[0] for call in calls} == {8}


def test_one_that_says_ok_and_goes_on_fails() -> None:
    found = outcome(Behaviour(stops=False))
    assert found["verdict"] == "fail"
    assert found["reason"].startswith("a tenant whose channels were disabled continued: ")
    assert min(found["figures"]["done_while_closed"]) > 10


def test_one_that_does_not_go_on_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duel, "PATIENCE_S", 3.0)
    found = outcome(Behaviour(resumes=False))
    assert found["verdict"] == "fail"
    assert found["reason"].startswith("a tenant whose channels were opened again did not end: ")


def test_a_driver_that_refuses_has_no_gate() -> None:
    found = outcome(refuse_disable=True)
    assert (found["verdict"], found["figures"]) == ("fail", {})
    assert found["reason"] == "the driver refused to close it: NOT_SUPPORTED"


@pytest.mark.parametrize("version", ["570.124.04", "590.10"])
def test_on_another_branch_nothing_is_tried(version: str) -> None:
    with FakeRm(version=version) as fake:
        found = gate.run(fake.rig, effort=EFFORT)
        assert not [entry for entry in fake.log() if entry.get("cmd") == abi.DISABLE_CHANNELS]
    assert found["verdict"] == "not_run"
    assert found["reason"] == f"driver {version}: channels were disabled on branch 580 only"


def test_without_the_right_to_it_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_MODULE", ("-c", "print('{\"errno\": 1}')"))
    found = outcome()
    assert (found["verdict"], found["reason"]) == ("not_run", "this process may not close it: Operation not permitted")


def test_nor_if_the_process_that_should_close_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_MODULE", ("-c", "raise SystemExit(3)"))
    found = outcome()
    assert found["verdict"] == "not_run"
    assert found["reason"].startswith("the process that should close it failed: ")


def test_a_rig_that_fails_before_anything_is_closed_is_no_verdict() -> None:
    with FakeRm(version="999.1") as fake, pytest.raises(RigError):
        gate.run(fake.rig, effort=EFFORT)


def test_the_branch_and_the_lock_are_those_of_the_executor() -> None:
    root = duel.Path(gate.__file__).resolve().parents[2]
    assert f"#define RM_GATE_MAJOR {abi.GATE_BRANCH}\n" in (root / "vgpumgr/gpu/native/rm_abi.h").read_text()
    source = (root / "compute/executor/gate/channels.c").read_text()
    assert f'"/run/{gatekeeper.LOCK}"' in source
    assert f'"%s/{gatekeeper.LOCK}"' in source


def test_a_list_that_is_too_long_is_no_call() -> None:
    with pytest.raises(ValueError, match="65 are more than 64"):
        abi.disable_channels(0, client=1, subdevice=2, channels=range(65), disable=True)


@pytest.mark.parametrize(
    ("t11", "answer", "use"),
    [
        ("pass", Use.YES, Use.IF),
        ("fail", Use.NO, Use.NO),
        ("not_run", Use.UNKNOWN, Use.UNKNOWN),
        ("inconclusive", Use.UNKNOWN, Use.UNKNOWN),
    ],
)
def test_what_may_be_said_of_the_gate(t11: str, answer: Use, use: Use) -> None:
    found = measured(t11=t11)
    assert gate_answer(found) == answer
    gates = {word.word: word.use for word in words(found) if word.word.endswith("+gate")}
    assert gates == {"kernel+gate": use, "broker+gate": use}


def test_older_measurements_say_nothing_of_a_gate() -> None:
    found = measured()
    del found["T11"]
    assert gate_answer(found) == Use.UNKNOWN
    assert {word.because for word in words(found) if word.word.endswith("+gate")} == {"T11 was not run"}
