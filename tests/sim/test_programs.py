# SPDX-License-Identifier: Apache-2.0
"""The host program that is simulated for a slice of a scenario."""

from pathlib import Path

import numpy as np
import pytest

from vgpumgr.sim.programs import source
from vgpumgr.sim.scenario import read
from vgpumgr.sim.sources import Backlog, Claim, Program

S = 1_000_000_000


def made(workload: str, *, seed: int = 1, who: tuple[int, int, int] = (0, 0, 0), more: str = "") -> Backlog | Program:
    text = f"duration: 2s\ntenants: [{{name: a, {more}workload: {{{workload}}}}}]"
    tenant = read(text, "a.yaml").scenario.tenants[0]
    return source(tenant, seed=seed, who=who, duration_ns=2 * S, folder=Path())


def arrivals(workload: str, *, seed: int = 1, who: tuple[int, int, int] = (0, 0, 0), more: str = "") -> list[int]:
    program = made(f"model: resnet50-inference, arrivals: {{{workload}}}", seed=seed, who=who, more=more)
    assert isinstance(program, Program)
    return [int(at) for at in np.asarray(program.arrivals_ns)]


def test_arrivals_depend_on_the_seed_and_on_who_it_is_and_on_nothing_else() -> None:
    poisson = "poisson: {rate: 50/s}"
    assert arrivals(poisson) == arrivals(poisson)
    different = [arrivals(poisson, seed=2), *(arrivals(poisson, who=who) for who in ((1, 0, 0), (0, 1, 0), (0, 0, 1)))]
    assert len({tuple(times) for times in [arrivals(poisson), *different]}) == 5


def test_kernels_depend_on_the_seed_only() -> None:
    one, other = made("model: resnet50-inference"), made("model: resnet50-inference", who=(3, 0, 0))
    later = made("model: resnet50-inference", seed=2)
    assert np.array_equal(np.asarray(one.work_ns), np.asarray(other.work_ns))
    assert not np.array_equal(np.asarray(one.work_ns), np.asarray(later.work_ns))


def test_arrivals_begin_with_the_tenant() -> None:
    assert arrivals("periodic: {rate: 2/s, phase: 100ms}", more="starts: 500ms, ") == [
        S // 10 * 6,
        S // 10 * 11,
        S // 10 * 16,
    ]
    assert min(arrivals("poisson: {rate: 500/s}", more="starts: 1s, ")) >= S


@pytest.mark.parametrize(
    ("process", "low", "high"),
    [
        ("on_off: {rate: 200/s, mean_on: 100ms, mean_off: 100ms}", 80, 320),
        ("diurnal: {rate: 100/s, amplitude: 60%, period: 1s}", 150, 250),
        ("step: {rate: 100/s, at: 1s, factor: 3}", 330, 470),
        ("periodic: {rate: 100/s}", 199, 200),
    ],
)
def test_every_process_has_its_rate(process: str, low: int, high: int) -> None:
    assert low <= len(arrivals(process)) <= high


def test_without_arrivals_the_next_request_comes_when_the_last_is_done() -> None:
    for workload, think_ns in (("", 0), (", arrivals: {closed: {think: 5ms}}", 5_000_000)):
        program = made(f"model: resnet50-inference{workload}")
        assert isinstance(program, Program)
        assert (program.arrivals_ns, program.think_ns) == (None, think_ns)


def test_what_the_scheduler_is_told_may_be_a_lie() -> None:
    kernels = "kernels: {count: 3, total: 3ms, median: 1ms}"
    assert list(made(kernels).compile().claims) == [Claim.MORE_FOLLOWS, Claim.MORE_FOLLOWS, Claim.END_OF_REQUEST]
    assert list(made(f"{kernels}, claims: none").compile().claims) == [0, 0, 0]
    liar = made(f"{kernels}, claims: more_follows, hint: 7us").compile()
    assert list(liar.claims) == [Claim.MORE_FOLLOWS] * 3
    assert list(liar.hint_ns) == [7000] * 3


def test_a_backlog_may_nap() -> None:
    program = made("backlog: {items: [1us, 2us], depth: 3, nap_every: 4, nap: 5ms}")
    assert isinstance(program, Backlog)
    assert (list(program.work_ns), program.depth, program.nap_every, program.nap_ns) == ([1000, 2000], 3, 4, 5_000_000)
