# SPDX-License-Identifier: Apache-2.0
"""For how long claims stay valid without the API, whatever the clocks do."""

import contextlib
from uuid import UUID, uuid4

from vgpumgr_agent.api import ApiAwayError
from vgpumgr_agent.documents import Stamp

from tests.agent.fakeapi import claim
from tests.agent.host import VM, A, B, C, Host


def test_claimed_vms_start_without_the_api_until_the_lease_ends(claimed: Host) -> None:
    claimed.api.away = True
    claimed.clock.go(24 * 3600 - 10)
    claimed.restart()
    claimed.start(A)
    claimed.clock.go(20)
    assert claimed.refused(B) == "lease.expired"


def test_each_answer_of_the_api_renews_the_lease(claimed: Host) -> None:
    claimed.clock.go(20 * 3600)
    claimed.learn()
    claimed.clock.go(20 * 3600)
    claimed.start(A)


def test_a_claim_that_is_no_longer_named_lives_for_one_lease(claimed: Host) -> None:
    claimed.api.set(slices=[claim(B, vm=VM)], lease_s=3600)
    claimed.learn()
    claimed.start(A)
    claimed.clock.go(3599)
    claimed.learn()
    claimed.release(A)
    claimed.start(A)
    claimed.clock.go(1)
    assert claimed.refused(A) == "lease.expired"


def running_unnamed(host: Host) -> None:
    """A VM runs with a claim that the API no longer names."""
    host.start(A)
    host.kernel.open(str(A))
    host.api.set(slices=[claim(B, vm=VM)], lease_s=3600)
    host.learn()


def test_a_claim_whose_lease_has_ended_is_forgotten_and_its_vm_runs_on(claimed: Host) -> None:
    running_unnamed(claimed)
    assert any(str(A) in refusal for refusal in claimed.api.last().refusals)
    claimed.clock.go(3601)
    claimed.learn()
    assert claimed.slices() == {A}
    (named,) = claimed.api.last().refusals
    assert "neither claim nor tombstone" in named
    claimed.start(B)
    claimed.kernel.close_slice(str(A))
    assert claimed.refused(A) == "claim.missing"
    claimed.restart()
    claimed.learn()
    assert claimed.refused(A) == "claim.missing"


def test_a_claim_whose_age_is_lost_is_forgotten(claimed: Host) -> None:
    running_unnamed(claimed)
    claimed.kernel.reboot()
    claimed.clock.stamp = Stamp(wall_s=1e9 - 3600, boot_id="two", boottime_s=5)
    claimed.restart()
    claimed.learn()
    assert claimed.refused(metadata=(A,)) == "claim.missing"
    claimed.start(B)


def test_no_claim_is_forgotten_while_the_desired_state_is_not_trusted(claimed: Host) -> None:
    running_unnamed(claimed)
    claimed.api.set(epoch_confirmed=False)
    claimed.learn()
    claimed.clock.go(3601)
    claimed.learn()
    claimed.kernel.close_slice(str(A))
    assert claimed.refused(A) == "lease.expired"


def restored(host: Host, epoch: UUID) -> None:
    """The API has another database, which lacks claim A, and an operator has confirmed it."""
    slices = [each for each in host.api.document.slices if each.id != A]
    host.api.set(slices=slices, epoch=epoch, epoch_confirmed=False)
    host.learn()
    host.start(A)
    host.release(A)
    host.api.set(epoch_confirmed=True)
    host.learn()


def test_a_claim_that_a_confirmed_database_lacks_starts_no_vm(claimed: Host) -> None:
    assert said_startable(claimed) == {A, B, C}
    restored(claimed, uuid4())
    assert said_startable(claimed) == {B, C}
    claimed.restart()
    claimed.api.away = True
    assert claimed.refused(metadata=(A,)) == "claim.missing"
    claimed.start(B)
    claimed.api.away = False
    claimed.api.set(slices=[*claimed.api.document.slices, claim(A, vm=VM)])
    claimed.learn()
    claimed.start(A)


def test_an_answer_of_the_epoch_before_that_comes_late_gives_nothing_back(claimed: Host) -> None:
    assert claimed.store is not None
    late, asked_at = claimed.api.document, claimed.store.updates
    restored(claimed, uuid4())
    assert not claimed.store.receive(late, asked_at=asked_at)
    assert claimed.refused(metadata=(A,)) == "claim.missing"


def test_what_is_kept_for_a_lease_is_said_to_be_startable_until_that_ends(claimed: Host) -> None:
    claimed.api.set(slices=[claim(B, vm=VM)], lease_s=3600)
    claimed.learn()
    assert said_startable(claimed) == {A, B, C}
    claimed.clock.go(3600)
    claimed.learn()
    assert said_startable(claimed) == {B}


def said_startable(host: Host) -> set[UUID]:
    return {each.id for each in host.api.last().slices if each.startable}


def test_a_clock_that_is_set_back_does_not_make_a_lease_longer(claimed: Host) -> None:
    claimed.api.away = True
    claimed.clock.stamp = Stamp(wall_s=1e9 - 7200, boot_id="one", boottime_s=100 + 24 * 3600 + 1)
    assert claimed.refused(A) == "lease.expired"
    claimed.clock.stamp = Stamp(wall_s=1e9 - 7200, boot_id="two", boottime_s=5)
    assert claimed.refused(A) == "lease.expired"
    claimed.clock.stamp = Stamp(wall_s=1e9 + 7200, boot_id="two", boottime_s=5)
    claimed.start(A)


def test_a_boot_that_sets_the_clock_back_does_not_renew_a_lease(claimed: Host) -> None:
    claimed.api.set(slices=[claim(B, vm=VM)])
    claimed.learn()
    claimed.api.away = True
    for _ in range(23):
        claimed.clock.go(3600)
        with contextlib.suppress(ApiAwayError):
            claimed.agent.control_plane._step()
    claimed.clock.stamp = Stamp(wall_s=1e9 + 22 * 3600, boot_id="two", boottime_s=5)
    claimed.restart()
    assert claimed.refused(B) == "lease.expired"
    assert claimed.refused(A) == "lease.expired"
    claimed.clock.stamp = Stamp(wall_s=1e9 + 23 * 3600 - 30, boot_id="two", boottime_s=5)
    claimed.start(B)
    claimed.start(A)
    claimed.clock.go(3600 + 60)
    assert claimed.refused(B) == "lease.expired"
    assert claimed.refused(A) == "lease.expired"


def test_a_clock_that_jumps_forward_within_a_boot_ends_no_lease(claimed: Host) -> None:
    claimed.api.away = True
    claimed.clock.stamp = Stamp(wall_s=1e9 + 1e8, boot_id="one", boottime_s=200)
    claimed.start(A)
