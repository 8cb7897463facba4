# SPDX-License-Identifier: Apache-2.0
"""T1, T2, T4 and T10 on GPUs that a formula simulates: the verdict for each way of sharing, and when there is none."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gpu.fakerm.fake import FakeRm
from tests.gpu.fakerm.gpu import Behaviour
from vgpumgr.gpu import shares
from vgpumgr.gpu.duel import Rig, RigError, Tenant
from vgpumgr.gpu.enforcement import words
from vgpumgr.gpu.shares import Effort

RATE = 1000.0


@dataclass
class Formula:
    """A simulated GPU. `slices`: maps requested timeslices to obtained ones. `noise`: deviation of a share.
    `idle_gets`: A's share beside an idle B. `bends`: throughput does not follow from one cost per switch.
    """

    slices: Callable[[int, int], tuple[int, int]] = lambda a, b: (a, b)
    noise: float = 0.0
    first_is_favoured: float = 0.0
    idle_gets: float = 1.0
    switch_us: float = 80.0
    bends: bool = False
    statuses: Sequence[tuple[str, int]] = (("applied", 0),)
    runs: list[tuple[tuple[str, int | None], ...]] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(7))

    def run(self, _: Rig, tenants: Sequence[Tenant], *, seconds: float) -> Any:
        assert seconds > 0
        self.runs.append(tuple((tenant.load, tenant.timeslice_us) for tenant in tenants))
        if len(tenants) == 1:
            return self.duel(1.0, RATE, seconds)
        a, b = tenants
        if b.load == "idle":
            return self.duel(1.0, RATE * self.idle_gets * (1 + self.random.gauss(0, self.noise)), seconds)
        got_a, got_b = self.slices(a.timeslice_us or 2048, b.timeslice_us or 2048)
        share = got_a / (got_a + got_b) + self.first_is_favoured + self.random.gauss(0, self.noise)
        lost = 2 * self.switch_us / (got_a + got_b)
        if self.bends:
            lost = 0.5 if got_a > 2000 else 0.0
        return self.duel(share, RATE / (1 + lost), seconds)

    def duel(self, share: float, rate: float, seconds: float) -> Any:
        rates = {"A": share * rate, "B": (1 - share) * rate}
        said = [{"event": e, "client": 1, "group": 2, "result": 0, "status": status} for e, status in self.statuses]
        result = SimpleNamespace(rounds=5, shim=said)
        window_ns = (0.1 * seconds * 1e9, 0.9 * seconds * 1e9)
        return SimpleNamespace(
            share=lambda _: share, rate=rates.__getitem__, of=lambda _: [result], window_ns=window_ns
        )


def run(monkeypatch: pytest.MonkeyPatch, gpu: Formula, **effort: Any) -> dict[str, dict[str, Any]]:
    monkeypatch.setattr(shares.duel, "run", gpu.run)
    return shares.run(Rig(), effort=Effort(**effort))


def verdicts(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: str(test["verdict"]) for name, test in found.items()}


def outcomes(found: dict[str, dict[str, Any]], test: str = "T2") -> list[str]:
    return [str(setting["outcome"]) for setting in found[test]["settings"]]


def test_a_gpu_that_honours_timeslices_passes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, Formula(noise=0.004))
    assert verdicts(found) == {"T1": "pass", "T2": "pass", "T4": "pass", "T10": "pass"}
    assert set(outcomes(found)) == {"honoured"}
    cost = found["T10"]["figures"]["switch_cost_us"]
    assert cost["low"] <= 80.0 <= cost["high"] or cost["mean"] == pytest.approx(80.0)


def test_one_that_ignores_them_is_told_from_one_that_deviates(monkeypatch: pytest.MonkeyPatch) -> None:
    ignores = run(monkeypatch, Formula(slices=lambda *_: (2048, 2048), noise=0.004))
    assert (ignores["T2"]["verdict"], ignores["T2"]["figures"]["honoured"]) == ("fail", "no")
    assert set(outcomes(ignores)) == {"ignored"}
    assert verdicts(ignores)["T10"] == "not_run"
    halves = run(monkeypatch, Formula(slices=lambda a, b: (a, (a + b) // 2), noise=0.004))
    assert halves["T2"]["figures"]["honoured"] in ("no", "partly")
    assert "deviates" in outcomes(halves)


def test_one_that_clamps_honours_some(monkeypatch: pytest.MonkeyPatch) -> None:
    clamps = Formula(slices=lambda a, b: (max(2000, min(a, 10_000)), max(2000, min(b, 10_000))), noise=0.003)
    found = run(monkeypatch, clamps)
    assert (found["T2"]["verdict"], found["T2"]["figures"]["honoured"]) == ("fail", "partly")
    asked = [(setting["timeslice_us"]["A"], setting["timeslice_us"]["B"]) for setting in found["T2"]["settings"]]
    by_asked = dict(zip(asked, outcomes(found), strict=True))
    assert by_asked[2048, 6144] == "honoured"
    assert by_asked[20_000, 60_000] == "ignored"


@pytest.mark.parametrize("event", ["applied", "rewritten"])
def test_a_driver_that_refuses_says_nothing_about_the_gpu(monkeypatch: pytest.MonkeyPatch, event: str) -> None:
    gpu = Formula(slices=lambda *_: (2048, 2048), statuses=((event, 0x56),))
    found = run(monkeypatch, gpu)
    assert (found["T2"]["verdict"], found["T2"]["figures"]["honoured"]) == ("inconclusive", "unknown")
    assert found["T2"]["reason"].startswith("the driver refused: 2048/6144 us: NOT_SUPPORTED, ")
    assert found["T2"]["settings"][0]["status"]["A"] == ["NOT_SUPPORTED"]
    assert {word.word: str(word.use) for word in words(found) if word.member == "scope"} == dict.fromkeys(
        ("tenant", "gpu"), "unknown"
    )


@pytest.mark.parametrize(
    ("statuses", "verdict"), [((("applied", 0x56), ("rewritten", 0)), "pass"), ((), "inconclusive")]
)
def test_the_last_answer_counts(monkeypatch: pytest.MonkeyPatch, statuses: Any, verdict: str) -> None:
    assert verdicts(run(monkeypatch, Formula(statuses=statuses)))["T2"] == verdict


def test_a_window_that_is_no_whole_number_of_turns_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.2 s are 2.5 turns of 20 + 60 ms. On a GPU that honours these, A gets between 20 % and a third of 0.2 s."""
    cut = Formula(slices=lambda a, b: (a, b) if a < 20_000 else (5, 10))
    assert verdicts(run(monkeypatch, cut, seconds=2.0))["T2"] == "fail"
    found = run(monkeypatch, cut, seconds=0.25)
    assert (found["T2"]["verdict"], found["T2"]["figures"]["honoured"]) == ("inconclusive", "unknown")
    assert found["T2"]["settings"][2]["uncertainty"] == pytest.approx(0.25 * 0.75 * 80 / 200)


def test_a_short_measurement_of_an_honest_gpu_never_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "RIG", shares.RIG[1:])
    monkeypatch.setattr(shares, "HONOUR", (shares.Setting(a_us=20_000, b_us=60_000),))
    with FakeRm(Behaviour(honour="yes")) as fake:
        for seconds in (0.1, 0.25, 0.4):
            found = shares.run(fake.rig, effort=Effort(repeats=3, seconds=seconds))
            assert found["T2"]["verdict"] in ("inconclusive", "not_run"), found["T2"]


def test_a_rig_that_favours_one_ends_the_probe_there(monkeypatch: pytest.MonkeyPatch) -> None:
    unfair = Formula(first_is_favoured=0.1, noise=0.004)
    found = run(monkeypatch, unfair)
    assert verdicts(found) == {"T1": "fail", "T2": "not_run", "T4": "not_run", "T10": "not_run"}
    assert all(found[name]["reason"].startswith("T1: equal tenants do not") for name in ("T2", "T4", "T10"))
    assert {tenants for tenants in unfair.runs if len(tenants) == 2} == {
        (("compute", None), ("compute", None)),
        (("compute", 2048), ("compute", 2048)),
    }


def test_a_rig_that_varies_is_inconclusive_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, Formula(noise=0.1))
    assert verdicts(found) == {"T1": "inconclusive", "T2": "not_run", "T4": "not_run", "T10": "not_run"}


def test_shares_that_vary_only_with_timeslices_are_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nervous(Formula):
        def run(self, rig: Rig, tenants: Sequence[Tenant], *, seconds: float) -> Any:
            unequal = len({tenant.timeslice_us for tenant in tenants}) > 1
            self.noise = 0.1 if unequal else 0.002
            return super().run(rig, tenants, seconds=seconds)

    found = run(monkeypatch, Nervous())
    assert verdicts(found)["T1"] == "pass"
    assert (found["T2"]["verdict"], found["T2"]["figures"]["honoured"]) == ("inconclusive", "unknown")
    assert verdicts(found)["T10"] == "not_run"


@pytest.mark.parametrize(
    ("left", "noise", "verdict"),
    [(1.0, 0.004, "pass"), (0.25, 0.004, "fail"), (0.97, 0.03, "inconclusive"), (1.2, 0.004, "inconclusive")],
)
def test_idle_time_is_given_kept_or_not_to_be_told(
    monkeypatch: pytest.MonkeyPatch, left: float, noise: float, verdict: str
) -> None:
    class Nervous(Formula):
        def run(self, rig: Rig, tenants: Sequence[Tenant], *, seconds: float) -> Any:
            self.noise = noise if tenants[-1].load == "idle" else 0.002
            return super().run(rig, tenants, seconds=seconds)

    assert verdicts(run(monkeypatch, Nervous(idle_gets=left)))["T4"] == verdict


def test_a_throughput_that_no_switch_cost_explains_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, Formula(bends=True))
    assert verdicts(found)["T10"] == "fail"
    assert "switch_cost_us" not in found["T10"]["figures"]


def test_settings_take_turns_in_every_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Formula()
    run(monkeypatch, gpu, repeats=4)
    rig = gpu.runs[1:9]  # the first run calibrates
    assert [len(set(rig[at : at + 2])) for at in range(0, 8, 2)] == [2, 2, 2, 2]
    assert len({tuple(gpu.runs[9 + 7 * repeat : 16 + 7 * repeat]) for repeat in range(4)}) > 1
    assert len({frozenset(gpu.runs[9 + 7 * repeat : 16 + 7 * repeat]) for repeat in range(4)}) == 1


def test_what_the_rig_cannot_do_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RigError("shim_blind", "no channel group")

    monkeypatch.setattr(shares.duel, "run", broken)
    with pytest.raises(RigError, match="no channel group"):
        shares.run(Rig())


@pytest.mark.parametrize(
    ("effort", "field"),
    [({"repeats": 2}, "repeats"), ({"seconds": 0}, "seconds"), ({"seconds": float("inf")}, "seconds")],
)
def test_too_little_effort_is_refused(effort: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Effort(**effort)
