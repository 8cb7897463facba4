# SPDX-License-Identifier: Apache-2.0
"""Plots have distinct, labelled curves, and show tenants that were not served."""

import pytest
from matplotlib.colors import to_hex

from vgpumgr.sim.play import Exclusives, play_all
from vgpumgr.sim.plots import MOST_GROUPS, Plot, plots
from vgpumgr.sim.scenario import read

OVERLOADED = """\
duration: 500ms
warm_up: 100ms
seeds: 2
window: 100ms
tenants:
  - {name: batch, weight: 9, workload: {backlog: {items: 1ms}}}
  - name: light
    count: 10
    workload: {kernels: {count: 1, total: 1ms, median: 1ms}, arrivals: {periodic: {rate: 100/s}}}
  - {name: late, workload: {kernels: {count: 1, total: 800ms, median: 800ms}, arrivals: {periodic: {rate: 10/s}}}}
targets:
  - {tenant: light, p99: 70ms}
"""


@pytest.fixture(scope="module")
def drawn() -> dict[str, Plot]:
    loaded = read(OVERLOADED, "a.yaml")
    return {plot.name: plot for plot in plots(loaded.scenario, play_all(loaded, exclusives=Exclusives()))}


def test_every_axis_is_labelled_and_the_title_says_of_what_it_is(drawn: dict[str, Plot]) -> None:
    labels = [plot.drawing.axes[0].get_xlabel() for plot in drawn.values()]
    assert labels == ["time", "time", "time from arrival until done"]
    assert drawn["shares"].of == "windows of 100ms, seed 1"
    assert drawn["runs"].of.endswith("after 100ms, seed 1")
    assert drawn["latencies"].of == "all 2 seeds together"
    axis = drawn["shares"].drawing.axes[0].xaxis
    assert axis.get_major_formatter()(0, None) == "0"


def test_no_two_tenants_look_the_same(drawn: dict[str, Plot]) -> None:
    patches = [patch for patch in drawn["shares"].drawing.axes[0].patches if patch.get_label() not in ("", "warm-up")]
    shown = {(to_hex(patch.get_edgecolor()), patch.get_linestyle()) for patch in patches if patch.get_linewidth() > 1}
    assert len(shown) == MOST_GROUPS == 12
    assert not any(style in (":", "dotted") for _, style in shown)


def test_the_warm_up_is_marked_in_the_shares(drawn: dict[str, Plot]) -> None:
    spans = [patch for patch in drawn["shares"].drawing.axes[0].patches if patch.get_label() == "warm-up"]
    assert [span.get_extents().width > 0 for span in spans] == [True]
    assert drawn["shares"].text.endswith("The warm-up of 100ms, which figures leave out, is shaded.")


def test_who_was_not_served_is_named_and_a_curve_ends_at_the_part_that_was(drawn: dict[str, Plot]) -> None:
    lines = {str(line.get_label()): line for line in drawn["latencies"].drawing.axes[0].lines}
    late = next(label for label in lines if label.startswith("late"))
    assert late.startswith("late: 0 of ")
    assert f"{late}" in drawn["latencies"].text
    assert max(lines["light-1"].get_ydata()) < 1
    done, asked = drawn["latencies"].text.split("light-1: ")[1].split(" requests done")[0].split(" of ")
    assert max(lines["light-1"].get_ydata()) == pytest.approx(int(done) / int(asked))
    assert "batch" not in lines


def test_a_target_is_a_cross_where_a_curve_is_to_pass(drawn: dict[str, Plot]) -> None:
    crosses = [line for line in drawn["latencies"].drawing.axes[0].lines if line.get_marker() == "X"]
    points = [(line.get_xdata()[0], line.get_ydata()[0]) for line in crosses if len(line.get_xdata())]
    assert points == [(70_000_000, 0.99)] * 10
    assert "Crosses are p99 targets" in drawn["latencies"].text
