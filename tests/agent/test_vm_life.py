# SPDX-License-Identifier: Apache-2.0
"""The life of a VM's slice on one host: made at the start, removed at the stop, changed while the VM runs."""

import time

import pytest
from vgpumgr_agent.hook.service import PREPARE_LIMIT_S
from vgpumgr_agent.reconcile import RemoveSlice, Why

from tests.agent.fakeapi import claim, group
from tests.agent.fakekernel import GPU
from tests.agent.host import OTHER_VM, VM, A, B, C, Host, later


def test_groups_are_configured_at_once_and_devices_made_when_a_vm_starts(claimed: Host) -> None:
    assert claimed.kernel.state()["groups"] == {(GPU, "blue"): (600, 1000, 0), (GPU, "green"): (300, 1000, 0)}
    assert claimed.slices() == set()
    claimed.start(A, B)
    assert claimed.slices() == {A, B}
    claimed.kernel.open(str(A))
    claimed.kernel.open(str(B))
    claimed.reconcile()
    seen = {each.id: each for each in claimed.api.last().slices}
    assert (seen[A].present, seen[A].open, seen[A].applied_permille, seen[A].vm_uuid) == (True, True, 300, VM)
    assert (seen[C].present, seen[C].applied_permille) == (False, None)


def test_release_removes_the_devices_and_keeps_the_claims(claimed: Host) -> None:
    claimed.start(A, B)
    claimed.kernel.open(str(A))
    claimed.kernel.close_slice(str(A))
    claimed.release(A, B)
    claimed.release(A, B)
    claimed.reconcile()
    assert claimed.slices() == set()
    claimed.release(A, B)
    claimed.reconcile()
    claimed.start(A, B)
    assert claimed.slices() == {A, B}


def test_a_vm_that_starts_again_before_the_reconciler_looked_keeps_its_device(claimed: Host) -> None:
    claimed.start(A)
    claimed.kernel.open(str(A))
    claimed.kernel.close_slice(str(A))
    claimed.release(A)
    claimed.start(A)
    claimed.reconcile()
    assert claimed.slices() == {A}
    assert claimed.kernel.permit_s(str(A)) > 0


def test_a_release_for_another_vm_removes_nothing(claimed: Host) -> None:
    claimed.start(A)
    claimed.release(A, vm=OTHER_VM)
    claimed.reconcile()
    assert claimed.slices() == {A}


def test_a_planned_removal_is_dropped_when_the_vm_starts_again_meanwhile(claimed: Host) -> None:
    claimed.start(A)
    outcome = claimed.agent._actions.run([RemoveSlice(A, Why.RELEASED), RemoveSlice(A, Why.TOMBSTONE)])
    assert (outcome.done, claimed.slices()) == (0, {A})


def test_a_start_that_never_came_leaves_nothing_once_the_permit_is_over(claimed: Host) -> None:
    claimed.start(A)
    claimed.reconcile()
    assert claimed.slices() == {A}
    claimed.kernel.advance(121)
    claimed.reconcile()
    assert claimed.slices() == set()
    assert claimed.helper.call("observe")["records"] == []


def test_after_a_reboot_groups_come_back_and_the_vm_starts_with_the_same_uuid(claimed: Host) -> None:
    claimed.start(A)
    claimed.kernel.reboot()
    claimed.restart()
    claimed.api.away = True
    claimed.reconcile()
    assert claimed.helper.call("observe")["records"] == []
    assert set(claimed.kernel.state()["groups"]) == {(GPU, "blue"), (GPU, "green")}
    claimed.start(A)
    claimed.kernel.open(str(A))


def test_a_quota_change_reaches_a_running_vm(claimed: Host) -> None:
    claimed.start(A)
    claimed.kernel.open(str(A))
    claimed.api.set(groups=[group("blue", 150)], slices=[claim(A, vm=VM, share=150, generation=2)])
    claimed.learn()
    assert claimed.kernel.state()["groups"][GPU, "blue"] == (150, 1000, 0)
    assert claimed.kernel.slices[str(A)].weight == 150
    assert claimed.slices() == {A}
    seen = {each.id: each for each in claimed.api.last().slices}
    assert (seen[A].applied_permille, seen[A].generation) == (150, 2)


def test_a_device_that_is_still_being_removed_is_waited_for(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgpumgr_agent.helper.operations._REMOVE_WAIT_S", 0.1)
    claimed.start(A)
    claimed.kernel.held.add(str(A))
    claimed.release(A)
    claimed.reconcile()
    assert claimed.slices() == {A}
    later(0.5, lambda: claimed.kernel.let_go(str(A)))
    claimed.start(A)
    assert claimed.kernel.permit_s(str(A)) > 0


def test_a_device_that_a_stopped_vm_lets_go_of_late_is_waited_for(claimed: Host) -> None:
    claimed.start(A)
    claimed.kernel.open(str(A))
    begun = time.monotonic()
    assert claimed.refused(A) == "slice.open"
    assert time.monotonic() - begun < PREPARE_LIMIT_S / 2  # while the VM runs, the agent does not wait
    claimed.release(A)
    later(0.5, lambda: claimed.kernel.close_slice(str(A)))
    claimed.start(A)
    assert claimed.kernel.permit_s(str(A)) > 0
