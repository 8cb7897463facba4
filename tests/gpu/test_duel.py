# SPDX-License-Identifier: Apache-2.0
"""Tenants that compete, on the fake GPU: what is measured is what the GPU did, in virtual time."""

from pathlib import Path

import pytest

from tests.gpu.fakerm.fake import FakeRm
from tests.gpu.fakerm.gpu import Behaviour
from vgpumgr.gpu import duel
from vgpumgr.gpu.duel import Rig, RigError, Tenant

ROUNDS = 2000


def compete(fake: FakeRm, a_us: int | None, b_us: int | None, seconds: float = 1.0) -> duel.Duel:
    return duel.run(
        fake.rig,
        [Tenant(name="A", rounds=ROUNDS, timeslice_us=a_us), Tenant(name="B", rounds=ROUNDS, timeslice_us=b_us)],
        seconds=seconds,
    )


def test_shares_follow_timeslices_that_are_honoured() -> None:
    with FakeRm() as fake:
        assert compete(fake, 2048, 6144).share("A") == pytest.approx(0.25, abs=0.01)


def test_shares_are_equal_where_timeslices_are_ignored_although_every_answer_was_ok() -> None:
    with FakeRm(Behaviour(honour="ignore")) as fake:
        result = compete(fake, 2048, 6144)
    assert result.share("A") == pytest.approx(0.5, abs=0.01)
    statuses = [entry["status"] for run in result.results for entry in run.shim if entry["event"] == "rewritten"]
    assert statuses == [0, 0]


@pytest.mark.parametrize("style", ["", "short", "xfer", "unsized", "short xfer unsized"])
def test_every_way_in_which_libcuda_calls_the_driver_is_understood(style: str) -> None:
    with FakeRm(style=style) as fake:
        result = compete(fake, 1024, 9216, seconds=0.5)
    assert result.share("A") == pytest.approx(0.1, abs=0.01)
    for run in result.results:
        assert [entry["asked_us"] for entry in run.shim if entry["event"] == "rewritten"] == [2048]


def test_the_same_run_gives_the_same_figures() -> None:
    figures = []
    for _ in range(2):
        with FakeRm() as fake:
            figures.append([len(result.done_ns) for result in compete(fake, 3000, 5000, seconds=0.5).results])
    assert figures[0] == figures[1]


def test_a_kernel_is_measured_where_nobody_competes() -> None:
    with FakeRm() as fake:
        alone = duel.run(fake.rig, [Tenant(name="A", kernel_us=3000)], seconds=0.2)
        with pytest.raises(ValueError, match="rounds"):
            duel.run(fake.rig, [Tenant(name="A"), Tenant(name="B")], seconds=0.2)
    # The first launch makes the engine switch; the shortest of all counts.
    assert alone.results[0].rounds == 3000


@pytest.mark.parametrize(
    ("fake", "code"),
    [
        (FakeRm(version="999.10", cuda_version="999.10"), "driver_unknown"),
        (FakeRm(version="580.142", cuda_version="575.64.05"), "cuda_missing"),
        (FakeRm(dies_after_ns=200_000_000), "load_failed"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_word(fake: FakeRm, code: str) -> None:
    with fake, pytest.raises(RigError) as caught:
        compete(fake, 2048, 6144)
    assert caught.value.code == code


def test_without_libcuda_nothing_is_measured(tmp_path: Path) -> None:
    broken = tmp_path / "libcuda.so.1"
    broken.write_text("not a library")
    with pytest.raises(RigError) as caught:
        duel.run(Rig(environment={"LD_LIBRARY_PATH": str(tmp_path)}), [Tenant(name="A", rounds=1)], seconds=0.1)
    assert caught.value.code == "cuda_missing"
