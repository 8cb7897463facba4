# SPDX-License-Identifier: Apache-2.0
"""Which VM may start with which slices, and how an unbound slice becomes bound."""

import errno
from uuid import uuid4

from tests.agent.fakeapi import claim, group
from tests.agent.fakekernel import GPU, OTHER_GPU
from tests.agent.host import OTHER_VM, VM, A, B, C, Host
from vgpumgr.wire.fleet import Tombstone


def test_hook_refusals(claimed: Host) -> None:
    assert claimed.refused(C) == "claim.other_vm"
    assert claimed.refused(metadata=(C,)) == "claim.other_vm"
    assert claimed.refused(metadata=(uuid4(),)) == "claim.missing"
    assert claimed.refused(A, vm=OTHER_VM) == "claim.other_vm"
    assert claimed.slices() == set()


def test_all_slices_of_a_vm_or_none(claimed: Host) -> None:
    assert claimed.refused(A, C) == "claim.other_vm"
    assert claimed.slices() == set()
    claimed.kernel.fail["create"] = [0, errno.ENOSPC]
    assert claimed.refused(A, B) == "capacity.none"
    assert claimed.slices() == set()
    assert claimed.helper.call("observe")["records"] == []


def test_a_slice_that_a_vm_did_not_get_is_reported_until_one_does(claimed: Host) -> None:
    claimed.kernel.fail["create"] = [0, errno.ENOSPC]
    assert claimed.refused(A, B) == "capacity.none"
    for _ in range(2):
        claimed.reconcile()
        errors = {one.id: one.error for one in claimed.api.last().slices}
        assert "capacity.none" in errors[A]
        assert "capacity.none" in errors[B]
        assert errors[C] == ""
    claimed.start(A, B)
    claimed.reconcile()
    assert {one.error for one in claimed.api.last().slices} == {""}


def test_a_slice_that_was_refused_and_then_deleted_is_no_failure(claimed: Host) -> None:
    claimed.kernel.fail["create"] = [errno.ENOSPC]
    assert claimed.refused(A) == "capacity.none"
    document = claimed.api.document
    claimed.api.set(slices=[one for one in document.slices if one.id != A], tombstones=[Tombstone(id=A, generation=2)])
    claimed.learn()
    assert {one.error for one in claimed.api.last().slices} == {""}


def test_in_maintenance_no_vm_starts_with_a_slice(claimed: Host) -> None:
    claimed.api.set(host_state="maintenance")
    claimed.learn()
    assert claimed.refused(A) == "host.maintenance"
    assert claimed.refused(metadata=(A,)) == "host.maintenance"
    claimed.start(uuid4())
    claimed.restart()
    assert claimed.refused(A) == "host.maintenance"
    for state in ("cordoned", "draining", "ready"):
        claimed.api.set(host_state=state)
        claimed.learn()
        claimed.start(A)
        claimed.release(A)
        claimed.reconcile()


def test_devices_of_other_vendors_pass(claimed: Host) -> None:
    claimed.start(uuid4())
    assert claimed.slices() == set()


def test_a_device_on_our_gpu_without_a_claim_is_refused(claimed: Host) -> None:
    stray = uuid4()
    claimed.kernel.do_write(f"sys/bus/pci/devices/{OTHER_GPU}/mdev_supported_types/vgpumgr-mem16m/create", str(stray))
    assert claimed.refused(stray) == "claim.missing"


def test_slices_that_only_the_metadata_names_are_checked_and_not_made(claimed: Host) -> None:
    claimed.start(A, metadata=(A, B))
    assert claimed.slices() == {A}


def test_before_the_first_desired_state_nothing_of_ours_starts(host: Host) -> None:
    assert host.refused(metadata=(A,)) == "host.not_ready"


def test_a_module_of_another_abi_refuses_vms_and_is_reported(claimed: Host) -> None:
    (claimed.kernel.paths.gpu(GPU) / "abi_version").write_text("1.1\n")
    assert claimed.refused(A) == "host.not_ready"
    claimed.reconcile()
    report = claimed.api.last()
    assert report.gpus == []
    assert report.slices == []
    assert report.desired_epoch is None
    assert "abi_version" in report.refusals[0]


def test_a_claim_made_a_moment_ago_is_found(claimed: Host) -> None:
    new = uuid4()
    claimed.api.set(slices=[*claimed.api.document.slices, claim(new, vm=VM)])
    claimed.start(new)
    assert claimed.slices() == {new}


def test_an_unbound_slice_is_bound_to_the_first_vm_and_stays_so(claimed: Host) -> None:
    claimed.api.set(slices=[*claimed.api.document.slices, claim(uuid := uuid4(), vm=None)])
    claimed.learn()
    claimed.start(uuid)
    assert next(each.vm_uuid for each in claimed.api.document.slices if each.id == uuid) == VM
    claimed.api.away = True
    claimed.restart()
    claimed.release(uuid)
    claimed.start(uuid)
    assert claimed.refused(uuid, vm=OTHER_VM) == "claim.other_vm"


def test_an_unbound_slice_is_refused_while_the_api_is_away(claimed: Host) -> None:
    claimed.api.set(slices=[*claimed.api.document.slices, claim(uuid := uuid4(), vm=None)])
    claimed.learn()
    claimed.api.away = True
    assert claimed.refused(uuid) == "claim.unbound"
    assert claimed.slices() == set()


def test_a_slice_that_the_api_gave_to_another_vm_meanwhile_is_refused_with_its_code(claimed: Host) -> None:
    claimed.api.set(slices=[*claimed.api.document.slices, claim(uuid := uuid4(), vm=None)])
    claimed.learn()
    claimed.api.bind(claimed.api.host_id, uuid, OTHER_VM)
    assert claimed.refused(uuid) == "slice.bound"


def test_a_document_that_does_not_know_of_the_binding_yet_does_not_undo_it(claimed: Host) -> None:
    claimed.api.set(slices=[*claimed.api.document.slices, claim(uuid := uuid4(), vm=None)])
    claimed.learn()
    unbound = claimed.api.document.slices
    claimed.start(uuid)
    claimed.api.set(slices=unbound)
    claimed.learn()
    claimed.api.away = True
    claimed.release(uuid)
    claimed.start(uuid)


def test_a_share_that_changes_before_the_binding_is_heard_of_is_obeyed(claimed: Host) -> None:
    claimed.api.bind(claimed.api.host_id, A, VM)
    claimed.learn()
    claimed.api.set(groups=[group("blue", 150)], slices=[claim(A, vm=None, share=150, generation=1)])
    claimed.learn()
    claimed.start(A)
    assert claimed.kernel.slices[str(A)].weight == 150


def test_after_a_restore_a_claims_generation_may_go_back(claimed: Host) -> None:
    before = claimed.api.document.slices
    claimed.api.bind(claimed.api.host_id, A, VM)
    claimed.learn()
    others = [each for each in before if each.id != A]
    claimed.api.set(epoch=uuid4(), generation=1, slices=[*others, claim(A, vm=OTHER_VM, share=150, generation=1)])
    claimed.learn()
    assert claimed.refused(A) == "claim.other_vm"
    claimed.start(A, vm=OTHER_VM)
    assert claimed.kernel.slices[str(A)].weight == 150
