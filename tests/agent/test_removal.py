# SPDX-License-Identifier: Apache-2.0
"""What removes devices and groups, and what must not remove them."""

from uuid import uuid4

import pytest
from vgpumgr_agent.grace import GRACE_S
from vgpumgr_agent.helper.records import Records
from vgpumgr_agent.refused import Refused

from tests.agent.fakeapi import claim, group
from tests.agent.fakekernel import GPU
from tests.agent.host import OTHER_VM, VM, A, B, C, Host


def test_a_deleted_slice_goes_and_is_reported_absent_at_its_generation(claimed: Host) -> None:
    claimed.start(C, vm=OTHER_VM)
    claimed.api.delete(C, groups=[group("blue", 600)])
    claimed.learn()
    assert claimed.slices() == set()
    report = claimed.api.last()
    gone = next(each for each in report.slices if each.id == C)
    assert not gone.present
    assert report.desired_generation == claimed.api.document.generation
    assert report.desired_epoch == claimed.api.document.epoch
    assert set(claimed.kernel.state()["groups"]) == {(GPU, "blue")}
    assert claimed.refused(C, vm=OTHER_VM) == "claim.deleted"


def test_a_deleted_slice_in_use_stays_until_the_vm_stops(claimed: Host) -> None:
    claimed.start(C, vm=OTHER_VM)
    claimed.kernel.open(str(C))
    claimed.api.delete(C, groups=[group("blue", 600)])
    claimed.learn()
    pending = next(each for each in claimed.api.last().slices if each.id == C)
    assert (pending.present, pending.open) == (True, True)
    assert "in use" in pending.error
    assert (GPU, "green") in claimed.kernel.state()["groups"]
    claimed.kernel.close_slice(str(C))
    claimed.release(C, vm=OTHER_VM)
    claimed.reconcile()
    assert claimed.slices() == set()
    assert (GPU, "green") not in claimed.kernel.state()["groups"]


def test_a_group_is_forgotten_also_when_its_device_was_removed_before(claimed: Host) -> None:
    claimed.api.delete(C, groups=[group("blue", 600)])
    claimed.learn()
    assert set(claimed.kernel.state()["groups"]) == {(GPU, "blue")}


def test_a_start_that_overlaps_a_deletion_leaves_no_device(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = claimed.agent.hooks._backend
    original = backend.prepare

    def prepare_late(*arguments: object, **options: object) -> bool:
        made = original(*arguments, **options)  # type: ignore[arg-type]
        claimed.api.delete(C, groups=[group("blue", 600)])
        claimed.agent.control_plane._step()
        return made

    monkeypatch.setattr(backend, "prepare", prepare_late)
    assert claimed.refused(C, vm=OTHER_VM) == "claim.deleted"
    assert claimed.slices() == set()


def running(host: Host) -> None:
    host.start(A, B)
    host.kernel.open(str(A))


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        {"slices": [], "groups": []},
        {"slices": [], "groups": [], "epoch": uuid4(), "epoch_confirmed": False, "generation": 0},
        {"slices": [], "groups": [], "epoch": uuid4(), "generation": 0},
        {"slices": [], "groups": [], "generation": 0},
        {"slices": [], "groups": [], "generation": 1, "host_id": uuid4()},
    ],
    ids=["empty", "unconfirmed", "confirmed but empty", "older", "another database"],
)
def test_absence_removes_nothing(claimed: Host, change: dict[str, object], idle: bool) -> None:
    running(claimed)
    before = claimed.kernel.state()
    claimed.api.set(**change)
    claimed.learn()
    assert claimed.kernel.state() == before
    assert claimed.api.last().refusals
    if idle:
        claimed.kernel.close_slice(str(A))
        claimed.restart()
        claimed.reconcile()
        if change.get("epoch") and change.get("epoch_confirmed", True):  # another database, confirmed by an operator
            assert claimed.refused(A) == "claim.missing"
        else:
            claimed.start(A)
        assert claimed.slices() >= {A}


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": uuid4(), "epoch_confirmed": False, "generation": 9},
        {"generation": 0},
        {"generation": 9, "host_id": uuid4()},
    ],
    ids=["unconfirmed", "older", "another database"],
)
def test_tombstones_that_cannot_be_trusted_remove_nothing_and_additions_wait(
    claimed: Host, change: dict[str, object]
) -> None:
    running(claimed)
    trusted = claimed.api.document
    new = uuid4()
    claimed.api.delete(A, groups=[group("blue", 1)])
    claimed.api.set(slices=[claim(new, vm=VM)], **change)
    claimed.learn()
    assert claimed.slices() == {A, B}
    assert claimed.kernel.state()["groups"][GPU, "blue"][0] == 600
    assert claimed.refused(new) == "host.unconfirmed"
    assert claimed.slices() == {A, B}
    report = claimed.api.last()
    assert (report.desired_epoch, report.desired_generation) == (trusted.epoch, trusted.generation)


def test_a_deleted_claim_that_a_restored_database_has_again_waits_for_what_has_its_place(claimed: Host) -> None:
    backup, later, groups = claimed.api.document, uuid4(), claimed.api.document.groups
    claimed.start(B)
    claimed.api.delete(A, groups=groups)
    claimed.learn()
    assert claimed.refused(A) == "claim.deleted"
    claimed.api.set(slices=[*claimed.api.document.slices, claim(later, vm=VM)])
    claimed.learn()
    claimed.start(later)
    claimed.kernel.open(str(later))

    restored: dict[str, object] = {"slices": backup.slices, "tombstones": [], "epoch": uuid4(), "generation": 1}
    claimed.api.set(epoch_confirmed=False, **restored)
    claimed.learn()
    assert claimed.refused(A) == "host.unconfirmed"
    assert {one.id for one in claimed.api.last().slices if one.startable} == {B, C, later}
    claimed.start(B)

    claimed.api.set(epoch_confirmed=True)
    claimed.learn()
    claimed.restart()
    claimed.learn()
    assert claimed.refused(A) == "gpu.unknown_slices"
    assert claimed.refused(later) == "claim.missing"
    claimed.start(B)

    claimed.kernel.close_slice(str(later))
    claimed.learn()
    claimed.clock.go(GRACE_S)
    claimed.learn()
    assert claimed.slices() == {B}
    claimed.start(A)
    claimed.api.set(epoch_confirmed=False, **{**restored, "epoch": uuid4()})
    claimed.learn()
    claimed.start(A)


def test_what_has_the_place_of_a_claim_that_was_lost_waits_for_its_end(claimed: Host) -> None:
    """A failover lost commits, and another claim was then made in that place."""
    claimed.start(A)
    claimed.kernel.open(str(A))
    new = uuid4()
    others = [one for one in claimed.api.document.slices if one.id != A]
    claimed.api.set(slices=[*others, claim(new, vm=VM)], generation=claimed.api.document.generation + 1)
    claimed.learn()
    claimed.start(B)
    assert claimed.refused(new) == "gpu.unknown_slices"
    claimed.api.set(epoch=uuid4())
    claimed.learn()
    assert claimed.refused(new) == "gpu.unknown_slices"


def test_only_the_host_is_told_who_has_the_place_of_a_claim(claimed: Host) -> None:
    claimed.start(A)
    claimed.kernel.open(str(A))
    new, sibling = uuid4(), uuid4()
    named = [claim(new, vm=VM), claim(sibling, vm=VM)]
    claimed.api.set(slices=named, generation=claimed.api.document.generation + 1)
    claimed.learn()
    with pytest.raises(Refused, match=f"slice {new} may have lost its place to slice {A}"):
        claimed.start(new, sibling)
    claimed.learn()
    errors = {one.id: one.error for one in claimed.api.last().slices if one.id in (new, sibling)}
    assert errors == {
        new: "a VM did not start: gpu.unknown_slices: another slice, which the database does not know, may have its"
        " place; claim another one",
        sibling: "a VM did not start: gpu.unknown_slices: another slice of the VM was refused",
    }


def test_a_device_without_a_record_has_its_place_while_a_vm_runs(claimed: Host, records: Records) -> None:
    claimed.start(A)
    claimed.kernel.open(str(A))
    records.delete(str(A))
    new = uuid4()
    claimed.api.set(slices=[claim(new, vm=VM)], epoch=uuid4())
    claimed.learn()
    assert claimed.refused(new) == "gpu.unknown_slices"
    claimed.kernel.close_slice(str(A))
    claimed.start(new)


def test_a_new_epoch_is_obeyed_once_confirmed(claimed: Host) -> None:
    claimed.start(A)
    claimed.api.delete(A, groups=[group("blue", 300)])
    claimed.api.set(epoch=uuid4(), epoch_confirmed=False, generation=1)
    claimed.learn()
    assert claimed.slices() == {A}
    claimed.api.set(epoch_confirmed=True, generation=1)
    claimed.learn()
    assert claimed.slices() == set()


def test_an_answer_that_was_overtaken_is_not_taken_for_a_restored_database(claimed: Host) -> None:
    assert claimed.store is not None
    old, asked_at = claimed.api.document, claimed.store.updates
    claimed.api.set(slices=[*old.slices, claim(uuid4(), vm=VM)])
    claimed.agent.control_plane.refresh()
    assert not claimed.store.receive(old, asked_at=asked_at)
    assert claimed.store.kept is not None
    assert claimed.store.kept.trusted
