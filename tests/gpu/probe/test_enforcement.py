# SPDX-License-Identifier: Apache-2.0
"""From measurements to claims: nothing is claimed that no test has shown."""

from typing import Any

import pytest

from tests.gpu.probe.measured import measured, setting
from vgpumgr.gpu.enforcement import STEPS_US, Answer, Honoured, Use, answer, conclusive, granularity, honoured, words

NAMES = {
    ("requested", "timeslice_us"),
    ("applied", "timeslice_us"),
    ("granularity", "us"),
    ("scope", "tenant"),
    ("scope", "gpu"),
    ("semantics", "weight"),
    ("semantics", "cap"),
    ("enforced_by", "kernel"),
    ("enforced_by", "kernel+gate"),
    ("enforced_by", "broker+gate"),
    ("enforced_by", "firmware"),
    ("enforced_by", "cooperative"),
}


def uses(found_tests: dict[str, Any]) -> dict[str, str]:
    found = {f"{word.member} {word.word}": word for word in words(found_tests)}
    assert {(word.member, word.word) for word in found.values()} == NAMES
    assert all(word.because for word in found.values())
    return {name: str(word.use) for name, word in found.items()}


def test_a_gpu_that_honours_timeslices_shares_by_weight_under_conditions() -> None:
    assert uses(measured()) == {
        "requested timeslice_us": "yes",
        "applied timeslice_us": "yes",
        "granularity us": "yes",
        "scope tenant": "if",
        "scope gpu": "no",
        "semantics weight": "yes",
        "semantics cap": "no",
        "enforced_by kernel": "no",
        "enforced_by kernel+gate": "if",
        "enforced_by broker+gate": "if",
        "enforced_by firmware": "if",
        "enforced_by cooperative": "yes",
    }


def test_a_gpu_that_ignores_timeslices_enforces_nothing_per_tenant() -> None:
    ignored = [setting(2048, 6144, 0.5, outcome="ignored")]
    found = uses(measured(t2="fail", honoured="no", settings=ignored))
    assert found.pop("requested timeslice_us") == found.pop("scope gpu") == "yes"
    # Stopping a tenant needs no timeslices.
    assert found.pop("enforced_by kernel+gate") == found.pop("enforced_by broker+gate") == "if"
    assert set(found.values()) == {"no"}


@pytest.mark.parametrize("others", [[], [setting(1400, 2600, 0.5, outcome="ignored")]])
def test_shares_that_follow_neither_are_no_ground_for_one_scope(others: list[dict[str, Any]]) -> None:
    tests = measured(t2="fail", honoured="no", settings=[setting(2048, 6144, 0.1, outcome="deviates"), *others])
    assert uses(tests)["scope gpu"] == "unknown"
    assert answer(tests) == Answer.PARTLY


@pytest.mark.parametrize(
    ("t1", "t2", "honour", "outcome", "expected"),
    [
        ("pass", "pass", "yes", "honoured", Answer.HONOURED),
        ("pass", "fail", "no", "ignored", Answer.IGNORED),
        ("pass", "fail", "partly", "honoured", Answer.PARTLY),
        ("pass", "inconclusive", "unknown", "inconclusive", Answer.UNKNOWN),
        ("fail", "pass", "yes", "honoured", Answer.UNKNOWN),
    ],
)
def test_there_is_one_answer(t1: str, t2: str, honour: str, outcome: str, expected: Answer) -> None:
    settings = [setting(2048, 6144, 0.25, outcome=outcome)]
    assert answer(measured(t1=t1, t2=t2, honoured=honour, settings=settings)) == expected


def test_why_t2_tells_nothing_is_passed_on() -> None:
    tests = measured(t2="inconclusive", honoured="unknown")
    tests["T2"]["reason"] = "the driver refused: 2048/6144 us: NOT_SUPPORTED"
    (applied,) = (word for word in words(tests) if word.member == "applied")
    assert applied.because == "T2 is inconclusive: the driver refused: 2048/6144 us: NOT_SUPPORTED"


def test_where_some_timeslices_are_not_honoured_those_are_named() -> None:
    partly = measured(
        t2="fail",
        honoured="partly",
        settings=[setting(2048, 6144, 0.25), setting(20_000, 60_000, 0.5, outcome="ignored")],
    )
    (applied,) = (word for word in words(partly) if word.member == "applied")
    assert applied.use == Use.NO
    assert "20000/60000 us gave 50.0% instead of 25.0%" in applied.because
    assert "2048" not in applied.because


@pytest.mark.parametrize("t1", ["fail", "inconclusive", "not_run"])
def test_without_a_rig_that_passed_nothing_is_concluded(t1: str) -> None:
    """This holds even if T2 passed."""
    found = uses(measured(t1=t1))
    assert found.pop("requested timeslice_us") == "yes"
    assert found.pop("enforced_by kernel") == "no"
    assert set(found.values()) == {"unknown"}


@pytest.mark.parametrize("verdict", ["inconclusive", "not_run"])
def test_what_depends_on_a_test_without_a_result_is_unknown(verdict: str) -> None:
    found = uses(measured(t2=verdict, honoured="unknown"))
    assert found["applied timeslice_us"] == found["enforced_by firmware"] == found["scope tenant"] == "unknown"
    assert found["semantics cap"] == "no"  # T4 alone shows this
    found = uses(measured(t4=verdict))
    assert found["semantics weight"] == found["semantics cap"] == "unknown"
    assert found["applied timeslice_us"] == "yes"


def test_who_keeps_idle_time_is_no_weight_and_not_therefore_a_cap() -> None:
    found = uses(measured(t4="fail"))
    assert (found["semantics weight"], found["semantics cap"]) == ("no", "unknown")


@pytest.mark.parametrize("name", ["t2", "t4", "t10"])
@pytest.mark.parametrize(
    ("verdict", "says"), [("pass", True), ("fail", True), ("inconclusive", False), ("not_run", False)]
)
def test_a_probe_is_conclusive_if_every_test_is(name: str, verdict: str, says: bool) -> None:
    assert conclusive(measured(**{name: verdict})) is says


def test_a_rig_that_did_not_pass_makes_nothing_conclusive() -> None:
    assert not any(conclusive(measured(t1=verdict)) for verdict in ("fail", "inconclusive", "not_run"))


def test_what_switching_costs_need_not_be_known_where_timeslices_do_not_count() -> None:
    assert conclusive(measured(t2="fail", honoured="no", t10="not_run"))


def test_a_missing_test_was_not_run() -> None:
    found = measured()
    del found["T2"]
    assert honoured(found) == Honoured.UNKNOWN
    assert not conclusive(found)


# ---- granularity


def test_steps_that_contradict_a_share_are_excluded() -> None:
    # With a step of 1000 us, 1400/2600 would give 33 % (down), 25 % (nearest) or 40 % (up).
    found = granularity(measured(settings=[setting(1400, 2600, 0.35, half=0.002)]))
    assert found.finer_than_us is not None
    assert found.finer_than_us <= 1000


def test_a_wide_interval_excludes_little() -> None:
    narrow = granularity(measured(settings=[setting(1400, 2600, 0.35, half=0.002)])).finer_than_us
    wide = granularity(measured(settings=[setting(1400, 2600, 0.35, half=0.08)])).finer_than_us
    assert narrow is not None
    assert wide is None or wide > narrow


def test_a_step_that_divides_all_timeslices_cannot_be_excluded() -> None:
    found = granularity(
        measured(settings=[setting(1024, 3072, 0.25, half=0.0005), setting(2048, 6144, 0.25, half=0.0005)])
    )
    assert found.finer_than_us is not None
    assert found.finer_than_us > 1024


@pytest.mark.parametrize("step_us", [500, 1000, 2000])
def test_a_step_that_is_really_there_is_never_excluded(step_us: int) -> None:
    def floored(a: int, b: int) -> dict[str, Any]:
        down_a, down_b = (max(us // step_us, 1) * step_us for us in (a, b))
        # The share has the same error of half a point in every repeat.
        return setting(a, b, down_a / (down_a + down_b) + 0.005, half=0.001)

    pairs = [(2048, 6144), (1024, 9216), (20_000, 60_000), (1400, 2600), (3100, 4700)]
    found = granularity(measured(settings=[floored(a, b) for a, b in pairs]))
    assert found.finer_than_us is None or found.finer_than_us > step_us
    assert step_us in STEPS_US


def test_no_granularity_where_timeslices_are_not_honoured() -> None:
    found = granularity(measured(t2="fail", honoured="no", settings=[setting(2048, 6144, 0.5, outcome="ignored")]))
    assert (found.finer_than_us, found.because) == (None, "timeslices honoured: no")
