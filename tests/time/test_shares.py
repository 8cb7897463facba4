# SPDX-License-Identifier: Apache-2.0
"""Each tenant's part of the engine, against the entitlement of R10."""

import pytest

from tests.rig.figures import Record
from tests.rig.gpu import Gpu, Load
from tests.rig.measure import measure

POINT = 0.01  # of the engine


def saturating(delay_us: float = 200, **options: object) -> dict[str, object]:
    return {"op": "delay", "delay_ns": int(delay_us * 1000), **options}


def test_weights_three_to_one_give_75_and_25_percent(gpu: Gpu, figures: Record) -> None:
    """Measured by the module's counters and, independently, by the work the clients saw completed."""
    gpu.tenant("blue", weight=300, timeslice_us=1000)
    gpu.tenant("green", weight=100, timeslice_us=1000)
    measured = measure(gpu, {gpu.slice("blue"): saturating(), gpu.slice("green"): saturating()}, window_s=10)

    figures("3:1, share of blue by counters", measured.share["blue"], against=0.75, unit="of the engine")
    figures("3:1, share of blue by completed work", measured.work_share["blue"], against=0.75, unit="of the work")
    assert measured.saturated
    assert measured.share["blue"] == pytest.approx(0.75, abs=POINT)
    assert measured.share["green"] == pytest.approx(0.25, abs=POINT)
    assert measured.work_share["blue"] == pytest.approx(0.75, abs=POINT)


def test_sixty_thirty_ten(gpu: Gpu, figures: Record) -> None:
    weights = {"blue": 600, "green": 300, "red": 100}
    load: Load = {}
    for tenant, weight in weights.items():
        gpu.tenant(tenant, weight=weight, timeslice_us=1000)
        load[gpu.slice(tenant)] = saturating()
    measured = measure(gpu, load, window_s=5)

    assert measured.saturated
    for tenant, weight in weights.items():
        figures(f"60/30/10, share of {tenant}", measured.share[tenant], against=weight / 1000, unit="of the engine")
        assert measured.share[tenant] == pytest.approx(weight / 1000, abs=POINT)
        assert measured.work_share[tenant] == pytest.approx(weight / 1000, abs=POINT)


def test_short_items_against_long_items_get_time_not_launches(gpu: Gpu, figures: Record) -> None:
    """50 us items against 2 ms items in one piece: equal weights, equal time."""
    gpu.set_max_chunk_us(2000)
    gpu.tenant("short", weight=100, timeslice_us=2000)
    gpu.tenant("long", weight=100, timeslice_us=2000)
    measured = measure(
        gpu,
        {gpu.slice("short"): saturating(50), gpu.slice("long"): saturating(2000, nosplit=True)},
        window_s=5,
    )

    figures("50 us against 2 ms items, share of the short", measured.share["short"], against=0.5, unit="of the engine")
    assert measured.saturated
    assert measured.share["short"] == pytest.approx(0.5, abs=POINT)
    assert measured.items["short"] > 30 * measured.items["long"]


def test_two_slices_of_a_tenant_get_no_more_than_its_group(gpu: Gpu, figures: Record) -> None:
    gpu.tenant("many", weight=100, timeslice_us=1000)
    gpu.tenant("one", weight=100, timeslice_us=1000)
    first, second = gpu.slice("many"), gpu.slice("many")
    measured = measure(gpu, {first: saturating(), second: saturating(), gpu.slice("one"): saturating()}, window_s=5)

    figures("two slices against one, share of the two", measured.share["many"], against=0.5, unit="of the engine")
    assert measured.saturated
    assert measured.share["many"] == pytest.approx(0.5, abs=POINT)
    assert measured.share["one"] == pytest.approx(0.5, abs=POINT)
    assert measured.slice_share[first] == pytest.approx(0.25, abs=POINT)
    assert measured.slice_share[second] == pytest.approx(0.25, abs=POINT)


def test_a_weight_changed_live_is_followed(gpu: Gpu) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    gpu.tenant("green", weight=100, timeslice_us=1000)
    blue, green = gpu.slice("blue"), gpu.slice("green")

    with gpu.loaded({blue: saturating(), green: saturating()}):
        before = gpu.measured_over(2).share
        gpu.tenant("blue", weight=400, timeslice_us=1000)
        after = gpu.measured_over(3).share

    assert before["blue"] == pytest.approx(0.5, abs=POINT)
    assert after["blue"] == pytest.approx(0.8, abs=POINT)


def test_overrun_and_nap_gains_nothing(gpu: Gpu, figures: Record) -> None:
    """A tenant that sends 8 ms items in one piece and sleeps 10 us between them stays within its entitlement and R10's
    bound."""
    chunk_us, timeslice_us, window_s = 8000, 1000, 10
    gpu.set_max_chunk_us(chunk_us)
    gpu.tenant("napper", weight=100, timeslice_us=timeslice_us)
    gpu.tenant("steady", weight=300, timeslice_us=timeslice_us)
    measured = measure(
        gpu,
        {
            gpu.slice("napper"): saturating(8000, nosplit=True, nap_us=10),
            gpu.slice("steady"): saturating(200),
        },
        window_s=window_s,
    )

    figures("8 ms items and 10 us naps, share of the napper", measured.share["napper"], against=0.25, unit="at most")
    bound = (timeslice_us + chunk_us) / (window_s * 1_000_000)
    # A lag may be outstanding at each end of the window.
    assert measured.share["napper"] <= 0.25 + 2 * bound
    assert measured.share["napper"] > 0.05, "the attack did not run"
