# SPDX-License-Identifier: Apache-2.0
"""Generated kernels and arrivals match the figures they are made from."""

import numpy as np
import pytest

from vgpumgr.sim import arrivals, workloads
from vgpumgr.sim.workloads import MODELS, POSITIONS

S = 1_000_000_000
QUANTILE_TOLERANCE = 0.03


@pytest.mark.parametrize("name", MODELS)
def test_a_models_kernels_have_the_published_count_sum_and_quantiles(name: str) -> None:
    model = MODELS[name]
    work_ns = workloads.published(name, seed=1).work_ns
    assert len(work_ns) == model.kernels
    assert work_ns.sum() == pytest.approx(model.sum_ms * 1e6, rel=1e-3)
    found_us = np.quantile(work_ns, POSITIONS) / 1000
    assert found_us == pytest.approx(model.quantiles_us, rel=QUANTILE_TOLERANCE)


def test_the_same_seed_gives_the_same_request_and_another_one_another_order() -> None:
    first, again, other = (workloads.published("resnet50-inference", seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.work_ns, again.work_ns)
    assert np.array_equal(first.launch_ns, again.launch_ns)
    assert not np.array_equal(first.work_ns, other.work_ns)
    assert np.array_equal(np.sort(first.work_ns), np.sort(other.work_ns))


def test_kernels_of_one_identity_take_about_the_same_time() -> None:
    kernels = workloads.published("bert-training", seed=1)
    for identity in np.unique(kernels.kernel_id):
        same = kernels.work_ns[kernels.kernel_id == identity]
        assert same.max() / same.min() < 2 ** (1 / 4) + 1e-3
    assert 10 < len(np.unique(kernels.kernel_id)) < 100


def test_kernels_that_the_host_waits_for_are_told_apart_by_where_it_waits() -> None:
    kernels = workloads.published("efficientnet-inference", seed=1, sync_every=40)
    waited_for = kernels.sync_ns > 0
    places = kernels.kernel_id[waited_for]
    assert list(places[:16]) == list(places[0] + np.arange(16))
    assert list(places[16:20]) == list(places[:4])
    assert not set(places) & set(kernels.kernel_id[~waited_for])


def test_launches_and_synchronisations_take_the_host_what_the_model_says() -> None:
    kernels = workloads.published("transformer-xl-training", seed=3, launch_median_ns=12_000, sync_every=4)
    assert np.median(kernels.launch_ns) == pytest.approx(12_000, rel=0.03)
    assert np.log(kernels.launch_ns).std() == pytest.approx(0.35, rel=0.05)
    synced = kernels.sync_ns[kernels.sync_ns > 0]
    assert np.median(synced) == pytest.approx(1e6, rel=0.05)
    assert list(np.flatnonzero(kernels.sync_ns)[:3]) == [3, 7, 11]
    assert kernels.sync_ns[-1] == 0
    assert not workloads.published("resnet50-inference", seed=3, launch_median_ns=0).launch_ns.any()


def test_a_log_normal_model_has_count_sum_and_median() -> None:
    work_ns = workloads.log_normal(kernels=101, total_ns=4_820_000, median_ns=35_000, seed=1).work_ns
    assert len(work_ns) == 101
    assert work_ns.sum() == pytest.approx(4_820_000, rel=1e-3)
    assert np.median(work_ns) == pytest.approx(35_000, rel=0.02)
    with pytest.raises(ValueError, match="at least kernels"):
        workloads.log_normal(kernels=10, total_ns=1000, median_ns=101, seed=1)


def random() -> np.random.Generator:
    return np.random.default_rng(5)


def test_periodic_arrivals_are_exact() -> None:
    assert list(arrivals.periodic(rate=4, duration_ns=S, phase_ns=10)) == [
        10,
        250_000_010,
        500_000_010,
        750_000_010,
    ]
    assert list(arrivals.periodic(rate=1, duration_ns=S, phase_ns=2 * S)) == []


def test_poisson_arrivals_have_their_rate_and_its_spread() -> None:
    times = arrivals.poisson(random(), rate=1000, duration_ns=100 * S)
    assert len(times) == pytest.approx(100_000, rel=0.01)
    gaps = np.diff(times)
    assert gaps.min() >= 0
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.02)


def test_on_off_arrivals_come_in_bursts_with_the_share_of_time_that_is_on() -> None:
    times = arrivals.on_off(random(), rate=1000, mean_on_ns=S // 10, mean_off_ns=3 * S // 10, duration_ns=400 * S)
    assert len(times) == pytest.approx(100_000, rel=0.05)
    assert np.all(np.diff(times) >= 0)
    gaps = np.diff(times)
    assert gaps.std() / gaps.mean() > 5


def test_diurnal_arrivals_rise_and_fall() -> None:
    times = arrivals.diurnal(random(), rate=1000, amplitude=0.6, period_ns=10 * S, phase=0, duration_ns=100 * S)
    parts = np.histogram(times % (10 * S), bins=4, range=(0, 10 * S))[0]
    # Over a quarter of the period a sine is 2/pi on average.
    expected = 25_000 * (1 + 0.6 * 2 / np.pi * np.array([1, 1, -1, -1]))
    assert parts == pytest.approx(expected, rel=0.03)


def test_a_step_multiplies_the_rate() -> None:
    times = arrivals.step(random(), rate=1000, factor=2, at_ns=40 * S, duration_ns=80 * S)
    assert (times < 40 * S).sum() == pytest.approx(40_000, rel=0.02)
    assert (times >= 40 * S).sum() == pytest.approx(80_000, rel=0.02)
    assert np.all(np.diff(times) >= 0)
