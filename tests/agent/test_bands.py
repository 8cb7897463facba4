# SPDX-License-Identifier: Apache-2.0
"""Bands, modes and policies between the API and the kernel."""

from dataclasses import replace

from vgpumgr_agent.report import applied_permille

from tests.agent.fakeapi import GPU, group
from tests.agent.host import A, B, Host
from tests.agent.test_reconcile import observed, seen, seen_group
from vgpumgr.wire.common import Band, Mode, Policy

LATENCY = {"band": Band.LATENCY, "reserve_us": 3000, "reserve_period_us": 10_000}


def test_a_tenant_gets_the_band_that_it_was_sold_and_loses_it_again(claimed: Host) -> None:
    claimed.start(A, B)
    for band, reserve_us in ((LATENCY, 3000), ({}, 0)):
        claimed.api.set(groups=[group("blue", 600, **band), group("green", 300)])
        claimed.learn()
        found = claimed.kernel.tenants[GPU, "blue"]
        assert (found.band, found.reserve_us) == ("latency" if band else "fair", reserve_us)
        assert claimed.agent._plan(claimed.store.kept, claimed.agent._backend.observe()) == []  # type: ignore[union-attr]
        assert claimed.api.last().refusals == []


def test_a_mode_is_passed_on(claimed: Host) -> None:
    capped = group("blue", 600, mode=Mode.STRICT, cap_us=6000, cap_period_us=10_000)
    claimed.api.set(groups=[capped, group("green", 300)])
    claimed.learn()
    assert claimed.kernel.tenants[GPU, "blue"].mode == "strict"


def test_what_the_kernel_does_not_admit_is_said_in_the_report(claimed: Host) -> None:
    claimed.kernel.fail["set_tenant"] = [34] * 9
    claimed.api.set(groups=[group("blue", 600, **LATENCY), group("green", 300)])
    claimed.learn()
    assert any("blue" in refusal for refusal in claimed.api.last().refusals)


def test_how_a_gpu_is_shared_is_reported(claimed: Host) -> None:
    claimed.reconcile()
    reported = {gpu.address: gpu for gpu in claimed.api.last().gpus}[GPU]
    assert (reported.policy, reported.places, reported.reserve_limit_permille) == (Policy.BEST_EFFORT, 0, 750)


def test_under_equal_and_fixed_share_a_slice_has_its_part_whatever_its_weight() -> None:
    here = observed(seen(A, weight=800), seen(B, weight=100), groups=(seen_group(weight=900),))
    slice_a = here.slices[A]

    def applied(policy: str, places: int) -> int:
        gpus = {address: replace(gpu, policy=policy, places=places) for address, gpu in here.gpus.items()}
        return applied_permille(slice_a, replace(here, gpus=gpus))

    assert applied("best_effort", 0) == 800
    assert applied("equal_share", 0) == 500
    assert applied("fixed_share", 8) == 125
