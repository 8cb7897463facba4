# SPDX-License-Identifier: Apache-2.0
"""The agent in this process, over a real helper, a played kernel and a played API: a host as a VM lives it."""

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from vgpumgr_agent.api import ApiAwayError, ApiRefusedError
from vgpumgr_agent.backends import BackendUnavailableError
from vgpumgr_agent.backends.kmod import KmodBackend
from vgpumgr_agent.config import Config
from vgpumgr_agent.documents import Clock, Stamp
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.helper.records import Records
from vgpumgr_agent.hook_server import HookServer, Limits
from vgpumgr_agent.hookproto import HookRefusedError
from vgpumgr_agent.reconcile import RemoveSlice, Why
from vgpumgr_agent.service import Agent
from vgpumgr_agent.store import StateError, Store

from tests.agent.fakeapi import FakeApi, claim, group
from tests.agent.fakekernel import GPU, OTHER_GPU, FakeKernel, FakeSysfs
from vgpumgr.control.sysfs import HostPaths

A, B, C = (UUID(int=number) for number in (1, 2, 3))
VM, OTHER_VM = UUID(int=100), UUID(int=101)


class FakeClock(Clock):
    """Both clocks, set by the test."""

    def __init__(self) -> None:
        self.stamp = Stamp(wall_s=1e9, boot_id="one", boottime_s=100.0)

    def now(self) -> Stamp:
        return self.stamp

    def go(self, seconds: float) -> None:
        self.stamp = self.stamp.model_copy(
            update={"wall_s": self.stamp.wall_s + seconds, "boottime_s": self.stamp.boottime_s + seconds}
        )


class Host:
    """An agent whose threads do not run: a test takes their steps. `restart`: the agent, with its state."""

    def __init__(self, directory: Path, kernel: FakeKernel, helper: HelperClient, api: FakeApi) -> None:
        self.directory = directory
        self.kernel = kernel
        self.helper = helper
        self.api = api
        self.clock = FakeClock()
        self.token_file = directory / "token"
        self.token_file.write_text("one-time\n")
        self.store: Store | None = None
        self.restart()

    def restart(self) -> None:
        if self.store is not None:
            self.store.close()
        self.store = Store(self.directory / "state", self.clock)
        self.agent = Agent(
            config=Config(api_url="http://unused", enroll_token_file=self.token_file),
            store=self.store,
            backend=KmodBackend(self.helper),
            sysfs=FakeSysfs(HostPaths(self.kernel.root)),
            api=self.api,
        )

    def learn(self) -> None:
        """Hear the desired state, if there is news, and do it."""
        self.agent.control_plane._doubtful_pause_s = 0
        self.agent.control_plane._step()
        self.reconcile()

    def reconcile(self) -> None:
        self.agent.reconcile()
        report = self.agent.control_plane._report
        if report is not None:
            self.api.reports.append(report)

    def start(self, *devices: UUID, vm: UUID = VM, metadata: tuple[UUID, ...] = ()) -> None:
        self.agent.hooks.prepare(vm_uuid=vm, devices=devices, metadata=metadata, domain="test")

    def refused(self, *devices: UUID, vm: UUID = VM, metadata: tuple[UUID, ...] = ()) -> str:
        with pytest.raises(HookRefusedError) as error:
            self.start(*devices, vm=vm, metadata=metadata)
        assert "\n" not in error.value.reason
        return error.value.code

    def release(self, *devices: UUID, vm: UUID = VM) -> None:
        self.agent.hooks.release(vm_uuid=vm, devices=devices, metadata=(), reason="shutdown")

    def slices(self) -> set[UUID]:
        return {UUID(uuid) for uuid in self.kernel.slices}


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def host(tmp_path: Path, kernel: FakeKernel, helper: HelperClient, api: FakeApi) -> Iterator[Host]:
    host = Host(tmp_path, kernel, helper, api)
    yield host
    assert host.store is not None
    host.store.close()


@pytest.fixture
def claimed(host: Host, api: FakeApi) -> Host:
    """Two claims of one VM, one of another, one unbound; known to the host."""
    api.set(
        groups=[group("blue", 600), group("green", 300)],
        slices=[
            claim(A, vm=VM),
            claim(B, vm=VM),
            claim(C, vm=OTHER_VM, tenant="green"),
        ],
    )
    host.learn()
    return host


# ---- a VM's life


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
    outcome = claimed.agent._executor.run([RemoveSlice(A, Why.RELEASED), RemoveSlice(A, Why.TOMBSTONE)])
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


def test_applied_share_is_what_the_kernel_has_not_what_was_asked_for(claimed: Host) -> None:
    claimed.start(A)
    claimed.kernel.open(str(A))
    claimed.kernel.fail["set_tenant"] = [errno.ERANGE] * 9
    claimed.kernel.fail["set_slice"] = [errno.ERANGE] * 9
    claimed.api.set(groups=[group("blue", 150)], slices=[claim(A, vm=VM, share=150)])
    claimed.learn()
    report = claimed.api.last()
    assert {each.id: each.applied_permille for each in report.slices}[A] == 300
    assert any("blue" in refusal for refusal in report.refusals)


# ---- who may not


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
    (claimed.kernel.paths.gpu(GPU) / "abi_version").write_text("2.0\n")
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


# ---- binding


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


# ---- tombstones


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


# ---- what must not remove anything


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
def test_tombstones_that_cannot_be_trusted_remove_nothing_and_additions_are_taken(
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
    claimed.start(new)
    assert claimed.slices() == {A, B, new}
    report = claimed.api.last()
    assert (report.desired_epoch, report.desired_generation) == (trusted.epoch, trusted.generation)


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


def test_a_device_of_ours_that_nobody_claims_or_deleted_is_kept_and_named(claimed: Host) -> None:
    claimed.start(A)
    claimed.reconcile()
    assert claimed.api.last().refusals == []
    stray = uuid4()
    claimed.kernel.do_write(f"sys/bus/pci/devices/{GPU}/mdev_supported_types/vgpumgr-mem16m/create", str(stray))
    claimed.reconcile()
    assert claimed.api.last().refusals == []  # somebody else's
    claimed.helper.call("adopt", uuid=str(stray))
    claimed.reconcile()
    (named,) = claimed.api.last().refusals
    assert str(stray) in named
    assert claimed.slices() == {A, stray}


# ---- the lease


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
    claimed.clock.go(3601)
    claimed.learn()
    claimed.start(B)
    assert claimed.refused(A) == "lease.expired"


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


# ---- the agent itself


def test_a_second_agent_is_kept_out(host: Host) -> None:
    with pytest.raises(StateError, match="another vgpumgr-agent"):
        Store(host.directory / "state", host.clock)


def test_the_agents_epoch_grows_with_each_start(host: Host) -> None:
    assert host.store is not None
    before = host.store.agent_epoch
    host.restart()
    assert host.store.agent_epoch > before


def test_damaged_state_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/desired.json").write_text("{}")
    with pytest.raises(StateError, match="damaged"):
        Store(tmp_path / "state", FakeClock())


def test_a_full_disk_is_not_taken_for_damage(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert host.store is not None
    host.store.close()
    with monkeypatch.context() as patch:
        patch.setattr("vgpumgr_agent.store.write_durably", full)
        with pytest.raises(StateError, match="No space left on device; free space") as error:
            Store(host.directory / "state", host.clock)
    assert "empty it" not in str(error.value)
    host.store = Store(host.directory / "state", host.clock)


def test_enrolment_happens_once_and_again_only_with_a_new_one_time_token(host: Host, api: FakeApi) -> None:
    host.learn()
    token = api.token
    assert (host.directory / "state/credentials.json").stat().st_mode & 0o777 == 0o600
    host.restart()
    host.learn()
    assert api.token == token
    api.token = "revoked"
    with contextlib.suppress(Exception):
        host.learn()
    assert (api.token, api.enrolments) == ("revoked", 1)
    api.one_time_tokens.add("second")
    host.token_file.write_text("second\n")
    with contextlib.suppress(Exception):
        host.learn()
    host.learn()
    assert api.token not in (token, "revoked")


def test_a_helper_that_is_away_is_reported_and_confirms_nothing(claimed: Host) -> None:
    claimed.agent._backend = KmodBackend(HelperClient(Path("/nonexistent")), call_s=0.1)
    claimed.reconcile()
    report = claimed.api.last()
    assert (report.slices, report.desired_epoch, len(report.gpus)) == ([], None, 2)
    assert "vgpumgr-helper" in report.refusals[0]


def test_prepare_answers_in_time_when_the_kernel_does_not(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgpumgr_agent.hooks._DECIDE_S", 1.0)
    claimed.kernel.fail["create"] = [errno.EEXIST] * 1000
    begun = time.monotonic()
    assert claimed.refused(A) == "host.not_ready"
    assert time.monotonic() - begun < 7


def test_reports_that_the_api_refuses_are_named_once(
    claimed: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    control_plane = claimed.agent.control_plane
    asked = []

    def refuse(*_: object) -> None:
        asked.append(1)
        if len(asked) == 3:
            claimed.agent.stop()
        claimed.reconcile()
        raise ApiRefusedError("body.too_large", "the body is larger than 8 MiB")

    monkeypatch.setattr(claimed.api, "report", refuse)
    control_plane._pause_min_s = 0
    with caplog.at_level("WARNING"):
        control_plane.deliver()
    assert len(asked) == 3
    said = [record.getMessage() for record in caplog.records]
    assert said == ["report not delivered: body.too_large: the body is larger than 8 MiB"]


def test_what_is_made_after_the_hook_was_told_no_is_taken_back(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgpumgr_agent.hooks._DECIDE_S", 0.4)
    backend = claimed.agent.hooks._backend
    original = backend.prepare
    done = threading.Event()

    def prepare_slowly(*arguments: Any, **options: Any) -> bool:
        made = original(*arguments, **options)
        done.wait(1)
        return made

    monkeypatch.setattr(backend, "prepare", prepare_slowly)
    path = claimed.directory / "hook.sock"
    server = HookServer(path, claimed.agent.hooks, limits=Limits(decide_s=0.6), peer_uid=os.getuid())
    server.start()
    with socket.socket(socket.AF_UNIX) as libvirt, libvirt.makefile("rb") as stream:
        libvirt.connect(str(path))
        request = {"v": 1, "op": "prepare", "domain": "test", "vm_uuid": str(VM), "metadata": [], "reason": "-"}
        libvirt.sendall(json.dumps({**request, "devices": [str(A), str(B)]}).encode() + b"\n")
        assert json.loads(stream.readline())["code"] == "agent.timeout"
    assert claimed.kernel.permit_s(str(A)) > 0
    done.set()
    deadline = time.monotonic() + 5
    while server.counters().open:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    server.close()
    assert claimed.slices() == set()


def test_a_device_that_was_permitted_without_an_answer_is_not_left_so(
    claimed: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = claimed.agent.hooks._backend
    original = backend.prepare

    def prepare_unheard(*arguments: Any, **options: Any) -> bool:
        original(*arguments, **options)
        raise BackendUnavailableError("helper.unavailable", "no answer")

    monkeypatch.setattr(backend, "prepare", prepare_unheard)
    assert claimed.refused(A) == "host.not_ready"
    assert claimed.kernel.permit_s(str(A)) == 0


def test_nothing_is_bound_or_made_once_time_is_up(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed.api.set(slices=[*claimed.api.document.slices, claim(uuid := uuid4(), vm=None)])
    claimed.learn()
    monkeypatch.setattr("vgpumgr_agent.hooks._DECIDE_S", -1.0)
    assert claimed.refused(metadata=(uuid,)) == "agent.timeout"
    assert next(each.vm_uuid for each in claimed.api.document.slices if each.id == uuid) is None
    assert claimed.refused(A) == "agent.timeout"
    assert claimed.slices() == set()


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
    assert claimed.refused(A) == "slice.open"
    claimed.release(A)
    later(0.5, lambda: claimed.kernel.close_slice(str(A)))
    claimed.start(A)
    assert claimed.kernel.permit_s(str(A)) > 0


def test_the_watchdog_hears_of_each_action_done_or_refused(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bool] = []
    monkeypatch.setattr("vgpumgr_agent.executor.notify", lambda *, watchdog: said.append(watchdog))
    claimed.kernel.fail["set_tenant"] = [errno.ERANGE]
    claimed.api.set(groups=[group("blue", 150), group("green", 150)])
    claimed.agent.control_plane._step()
    claimed.reconcile()
    assert said == [True] * 3  # the refused one is tried again


def test_the_helper_needs_nothing_but_the_standard_library(records: Records) -> None:
    import subprocess
    import sys

    names = "pydantic", "httpx2", "rich", "typer"
    code = f"import sys, vgpumgr_agent.helper.main; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_gpu_that_is_not_shared_yet_is_waited_for(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = claimed.kernel.paths.mdev_bus / GPU
    device = gpu.readlink()
    gpu.unlink()
    later(0.5, lambda: gpu.symlink_to(device))
    claimed.start(A)
    assert claimed.kernel.permit_s(str(A)) > 0
    monkeypatch.setattr("vgpumgr_agent.hooks._DECIDE_S", 0.5)
    gpu.unlink()
    assert claimed.refused(B) == "gpu.unknown"


def later(seconds: float, do: Callable[[], None]) -> None:
    threading.Timer(seconds, do).start()
