# SPDX-License-Identifier: Apache-2.0
"""Which words of `enforcement` are true for a GPU, judged only from what was measured on it.

Reads the tests of a probe in the form that `shares` and `gate` write; see docs/probe-gpu.md for the words. A test that
neither passed nor failed proves nothing: every word that depends on it is `unknown`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Tests = Mapping[str, Mapping[str, Any]]

# Possible tick lengths of a scheduler's clock, in us.
STEPS_US = (64, 100, 125, 128, 200, 250, 256, 500, 512, 1000, 1024, 2000, 2048, 4000, 4096, 5000, 10_000)

# The error of a share that is the same in every repeat: the ends of a run, switches, a neighbour's caches.
SYSTEMATIC = 0.01


class Verdict(StrEnum):
    """The verdict of one test of the probe."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOT_RUN = "not_run"


class Honoured(StrEnum):
    """What T2 says about timeslices."""

    YES = "yes"
    NO = "no"
    PARTLY = "partly"
    UNKNOWN = "unknown"


class Answer(StrEnum):
    """The overall answer: what happens to timeslices on this GPU. Frozen: scripts branch on it."""

    HONOURED = "honoured"
    IGNORED = "ignored"  # accepted by the driver, but all tenants are served alike
    PARTLY = "partly"  # shares depend on timeslices, but not as asked, or not always
    UNKNOWN = "unknown"


class Use(StrEnum):
    """Whether a word may be used."""

    YES = "yes"
    IF = "if"  # under the given condition
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Word:
    """A member of `enforcement`, one of its possible values, and whether that value may be used."""

    member: str
    word: str
    use: Use
    because: str


@dataclass(frozen=True, kw_only=True)
class Granularity:
    """The step size of the timeslices that are really obtained.

    `finer_than_us`: the smallest of `STEPS_US` such that this step size and all larger ones contradict the
    measurements. None if the largest step size does not contradict them."""

    finer_than_us: int | None
    because: str


def verdict(tests: Tests, name: str) -> Verdict:
    """Return the verdict of one test; a missing test was not run."""
    return Verdict(tests[name]["verdict"]) if name in tests else Verdict.NOT_RUN


def conclusive(tests: Tests) -> bool:
    """Whether the rig passed T1 and every relevant test passed or failed. T10 is irrelevant if T2 fails."""
    decided = (Verdict.PASS, Verdict.FAIL)
    needed = ("T2", "T4") if verdict(tests, "T2") == Verdict.FAIL else ("T2", "T4", "T10")
    return verdict(tests, "T1") == Verdict.PASS and all(verdict(tests, name) in decided for name in needed)


def honoured(tests: Tests) -> Honoured:
    """Return the result of T2, which counts only on a rig that passed T1."""
    if verdict(tests, "T1") != Verdict.PASS or verdict(tests, "T2") not in (Verdict.PASS, Verdict.FAIL):
        return Honoured.UNKNOWN
    return Honoured(tests["T2"]["figures"]["honoured"])


def answer(tests: Tests) -> Answer:
    """Return the overall answer."""
    found = honoured(tests)
    if found == Honoured.NO:
        return Answer.IGNORED if _served_alike(tests) else Answer.PARTLY
    return {Honoured.YES: Answer.HONOURED, Honoured.PARTLY: Answer.PARTLY}.get(found, Answer.UNKNOWN)


def gate_answer(tests: Tests) -> Use:
    """Return whether another process can stop a tenant's work: T11, on a rig that passed T1."""
    if verdict(tests, "T1") != Verdict.PASS:
        return Use.UNKNOWN
    return {Verdict.PASS: Use.YES, Verdict.FAIL: Use.NO}.get(verdict(tests, "T11"), Use.UNKNOWN)


def _served_alike(tests: Tests) -> bool:
    """Whether every setting was accepted and ignored. T2 has no result if the driver refused a setting."""
    ignored = [setting["outcome"] == "ignored" for setting in tests["T2"]["settings"]]
    return honoured(tests) == Honoured.NO and bool(ignored) and all(ignored)


def granularity(tests: Tests) -> Granularity:
    """Return the step size, from the shares of T2 alone. A timeslice that the driver reports is no evidence."""
    found = honoured(tests)
    if found != Honoured.YES:
        return Granularity(finer_than_us=None, because=f"timeslices honoured: {found}")
    settings = [setting for setting in tests["T2"]["settings"] if setting["outcome"] == "honoured"]
    finer = None
    for step_us in reversed(STEPS_US):
        if any(not _contradicted(rounding, step_us, settings) for rounding in ("down", "nearest", "up")):
            break
        finer = step_us
    if finer is None:
        return Granularity(finer_than_us=None, because="the intervals of T2 are too wide to exclude any step")
    return Granularity(finer_than_us=finer, because=f"steps of {finer} us and more contradict the shares of T2")


def _contradicted(rounding: str, step_us: int, settings: list[Mapping[str, Any]]) -> bool:
    """Whether a measured share is impossible if the GPU rounds timeslices to whole steps."""
    for setting in settings:
        a, b = (_rounded(us, step_us, rounding) for us in setting["timeslice_us"].values())
        share = setting["share"]
        if not share["low"] - SYSTEMATIC <= a / (a + b) <= share["high"] + SYSTEMATIC:
            return True
    return False


def _rounded(us: int, step_us: int, rounding: str) -> int:
    add = {"down": 0, "nearest": step_us // 2, "up": step_us - 1}[rounding]
    return max((us + add) // step_us, 1) * step_us


def words(tests: Tests) -> list[Word]:
    """Return a `Word` for each value of each member, members in the order of the architecture and REST documents."""
    return [*_values(tests), *_scope(tests), *_semantics(tests), *_enforced_by(tests)]


def _by_honour(tests: Tests, *, yes: Use, so: str) -> tuple[Use, str]:
    """Return the conclusion from T2: `yes` with the reason `so` if timeslices are honoured."""
    found = honoured(tests)
    if found == Honoured.YES:
        return yes, so
    if found == Honoured.NO:
        return Use.NO, "timeslices are not honoured (T2)"
    if found == Honoured.PARTLY:
        return Use.NO, "some timeslices are not honoured (T2): " + ", ".join(_missed(tests))
    if verdict(tests, "T1") != Verdict.PASS:
        return Use.UNKNOWN, "equal tenants did not get equal shares (T1), so nothing can be concluded"
    reason = tests["T2"]["reason"] if "T2" in tests else ""
    return Use.UNKNOWN, f"T2 is inconclusive: {reason}" if reason else "T2 is inconclusive"


def _missed(tests: Tests) -> Iterator[str]:
    for setting in tests["T2"]["settings"]:
        if setting["outcome"] != "honoured":
            asked = "/".join(str(us) for us in setting["timeslice_us"].values())
            yield f"{asked} us gave {setting['share']['mean']:.1%} instead of {setting['expected']:.1%}"


def _values(tests: Tests) -> Iterator[Word]:
    yield Word(member="requested", word="timeslice_us", use=Use.YES, because="it repeats the requested value")
    use, because = _by_honour(
        tests, yes=Use.YES, so="shares follow it (T2); report the value that the hardware's field holds, rounded down"
    )
    yield Word(member="applied", word="timeslice_us", use=use, because=because)
    if use == Use.YES:
        steps = granularity(tests)
        known = steps.finer_than_us is not None
        yield Word(member="granularity", word="us", use=Use.YES if known else Use.UNKNOWN, because=steps.because)
    else:
        yield Word(member="granularity", word="us", use=use, because=because)


def _scope(tests: Tests) -> Iterator[Word]:
    use, because = _by_honour(
        tests,
        yes=Use.IF,
        so="if a tenant has one channel group, or divides its timeslice among its groups: each group gets its own",
    )
    yield Word(member="scope", word="tenant", use=use, because=because)
    use, because = _by_honour(tests, yes=Use.NO, so="two groups of one GPU got different timeslices (T2)")
    if _served_alike(tests):
        use, because = Use.YES, "all groups are served alike (T1, T2), whatever is set for one of them"
    elif use == Use.NO and not _any_honoured(tests):
        use, because = Use.UNKNOWN, "shares are neither equal nor as requested (T2)"
    yield Word(member="scope", word="gpu", use=use, because=because)


def _any_honoured(tests: Tests) -> bool:
    return any(setting["outcome"] == "honoured" for setting in tests["T2"]["settings"])


def _semantics(tests: Tests) -> Iterator[Word]:
    conserves = verdict(tests, "T4")
    use, because = _by_honour(
        tests, yes=Use.YES, so="shares follow the ratio (T2), and idle time goes to tenants that have work (T4)"
    )
    if use == Use.YES and conserves != Verdict.PASS:
        use = Use.NO if conserves == Verdict.FAIL else Use.UNKNOWN
        because = "idle time does not go to tenants that have work (T4)" if use == Use.NO else f"T4: {conserves}"
    yield Word(member="semantics", word="weight", use=use, because=because)
    if verdict(tests, "T1") != Verdict.PASS or conserves not in (Verdict.PASS, Verdict.FAIL):
        cap = Use.UNKNOWN, "nothing follows from T4"
    elif conserves == Verdict.PASS:
        cap = Use.NO, "beside an idle neighbour a tenant gets the whole GPU (T4)"
    else:
        cap = (
            Use.UNKNOWN,
            "a tenant beside an idle one got less than the whole GPU (T4); the most that it can get is not tested",
        )
    yield Word(member="semantics", word="cap", use=cap[0], because=cap[1])


def _enforced_by(tests: Tests) -> Iterator[Word]:
    yield Word(
        member="enforced_by",
        word="kernel",
        use=Use.NO,
        because="our kernel module does not decide: the driver passes timeslices to the GPU's firmware",
    )
    has = gate_answer(tests)
    because = f"T11: {tests['T11']['reason']}" if "T11" in tests else "T11 was not run"
    if has == Use.YES:
        because = "if tenants' work runs in executors that know the GPU: work that does not yield is stopped (T11)"
    for word in ("kernel+gate", "broker+gate"):
        yield Word(member="enforced_by", word=word, use=Use.IF if has == Use.YES else has, because=because)
    use, because = _by_honour(
        tests,
        yes=Use.IF,
        so="if a process of the host runs the tenants' work and holds the device file: its holder sets timeslices",
    )
    yield Word(member="enforced_by", word="firmware", use=use, because=because)
    use, because = _by_honour(tests, yes=Use.YES, so="also if tenants hold the device file, as long as they cooperate")
    yield Word(member="enforced_by", word="cooperative", use=use, because=because)
