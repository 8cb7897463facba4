# SPDX-License-Identifier: Apache-2.0
"""The agent of a live host that was declared dead: it logs that once, harms no running VM and starts no new one."""

import errno
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from vgpumgr_agent import store
from vgpumgr_agent.api import ApiAwayError, ApiRefusedError
from vgpumgr_agent.grace import GRACE_S
from vgpumgr_agent.hook import admission
from vgpumgr_agent.pauses import Pauses
from vgpumgr_agent.refused import Refused

from tests.agent.fakeapi import claim
from tests.agent.host import VM, A, B, C, Host
from vgpumgr.wire.fleet import Desired, Tombstone

FENCED = "host host-1 was declared dead; stop the VMs that still run there, and have it re-enrolled"


@pytest.fixture
def fenced(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A VM runs with slice A."""
    claimed.start(A)
    claimed.kernel.open(str(A))
    claimed.learn()

    def refuse() -> None:
        if claimed.api.used != claimed.api.token:
            raise ApiRefusedError("host.fenced", FENCED)

    monkeypatch.setattr(claimed.api, "_authorised", refuse)
    claimed.api.token = "fenced"
    claimed.agent.control_plane._pauses = claimed.agent.reporter._pauses = Pauses(0, 0)
    yield claimed
    claimed.agent.stop()


def follow(host: Host, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run this many steps of the thread that asks for the desired state."""
    control_plane = host.agent.control_plane
    step, left = control_plane._step, [times]

    def counted() -> None:
        left[0] -= 1
        if not left[0]:
            host.agent.stop()
        step()

    monkeypatch.setattr(control_plane, "_step", counted)
    control_plane.follow()
    monkeypatch.setattr(control_plane, "_step", step)
    host.agent._stop.clear()


def deliver(host: Host, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run this many attempts of the thread that delivers reports."""
    report, left = host.api.report, [times]

    def counted(*said: object) -> object:
        left[0] -= 1
        if not left[0]:
            host.agent.stop()
        host.reconcile()
        return report(*said)

    monkeypatch.setattr(host.api, "report", counted)
    host.reconcile()
    host.agent.reporter.deliver()
    host.agent._stop.clear()


@pytest.mark.parametrize("token", ["there, used", "not there"])
def test_one_line_says_it_and_running_vms_are_left_alone(
    fenced: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, token: str
) -> None:
    if token == "not there":
        fenced.token_file.unlink()
    with caplog.at_level("WARNING"):
        follow(fenced, 3, monkeypatch)
        deliver(fenced, 3, monkeypatch)
    assert [record.getMessage() for record in caplog.records] == [f"API: host.fenced: {FENCED}"]
    assert fenced.agent.control_plane.trouble == f"host.fenced: {FENCED}"
    assert set(fenced.kernel.slices) == {str(A)}


@pytest.mark.parametrize("teller", ["desired state", "report", "hook"])
def test_no_vm_starts_any_more_whoever_is_told(fenced: Host, monkeypatch: pytest.MonkeyPatch, teller: str) -> None:
    match teller:
        case "desired state":
            follow(fenced, 1, monkeypatch)
        case "report":
            deliver(fenced, 1, monkeypatch)
        case "hook":
            assert fenced.refused(UUID(int=9), metadata=(UUID(int=9),)) == "claim.missing"
    assert fenced.refused(B) == "host.fenced"
    with pytest.raises(Refused, match=r"declared dead.*on another host.*re-enrolled"):
        fenced.start(A)
    assert set(fenced.kernel.slices) == {str(A)}


def test_binding_is_told_too(fenced: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    unbound = claim(uuid4(), vm=None)
    fenced.api.token = fenced.api.used
    fenced.api.set(slices=[*fenced.api.document.slices, unbound])
    fenced.learn()
    fenced.api.token = "fenced"
    monkeypatch.setattr(fenced.api, "bind", lambda *_: fenced.api._authorised())
    assert fenced.refused(unbound.id) == "host.fenced"
    assert fenced.refused(B) == "host.fenced"


def test_a_vm_that_is_being_started_when_it_is_told_gets_nothing(fenced: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = fenced.agent.hooks._backend.prepare

    def slow(*arguments: object, **options: object) -> object:
        made = prepare(*arguments, **options)
        follow(fenced, 1, monkeypatch)
        return made

    monkeypatch.setattr(fenced.agent.hooks._backend, "prepare", slow)
    assert fenced.refused(B) == "host.fenced"
    assert fenced.slices() == {A}


def test_it_holds_after_a_new_start_without_the_api(fenced: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(fenced, 1, monkeypatch)
    fenced.kernel.reboot()
    fenced.clock.stamp = fenced.clock.stamp.model_copy(update={"boot_id": "two", "boottime_s": 5})
    fenced.api.away = True
    fenced.restart()
    assert fenced.refused(A) == fenced.refused(B) == "host.fenced"
    assert fenced.store is not None
    assert fenced.store.standing(B).lease_left_s == 0
    assert fenced.refused(metadata=(A,)) == "host.fenced"


def test_it_holds_on_a_full_disk_and_is_kept_once_there_is_room(fenced: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_durably", full)
        deliver(fenced, 1, monkeypatch)
        assert fenced.refused(B) == "host.fenced"
    deliver(fenced, 1, monkeypatch)
    fenced.api.away = True
    fenced.restart()
    assert fenced.refused(B) == "host.fenced"


def test_a_host_that_boots_hears_of_its_fence_before_it_starts_a_vm(
    fenced: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    fenced.restart()
    fenced.api.away = True
    monkeypatch.setattr(admission, "_FIRST_ANSWER_S", 5.0)
    monkeypatch.setattr(admission, "_ASK_PAUSE_S", 0)
    asked: list[None] = []

    def later_there() -> None:
        asked.append(None)
        if len(asked) < 3:
            raise ApiAwayError("no network yet")

    monkeypatch.setattr(fenced.api, "_there", later_there)
    assert fenced.refused(B) == "host.fenced"
    assert len(asked) == 3


def test_an_answer_from_before_the_fence_comes_too_late(fenced: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fenced.store is not None
    asked_at = fenced.store.updates
    follow(fenced, 1, monkeypatch)
    fenced.store.touch()
    assert not fenced.store.receive(fenced.api.document, asked_at=asked_at)
    assert fenced.refused(B) == "host.fenced"


def enrol_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.api.one_time_tokens.add("second")
    host.token_file.write_text("second\n")
    follow(host, 1, monkeypatch)


def test_a_new_one_time_token_brings_it_back(fenced: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(fenced, 2, monkeypatch)
    assert fenced.api.enrolments == 1
    new = claim(uuid4(), vm=VM)
    lost = [Tombstone(id=each, generation=2) for each in (A, B, C)]
    fenced.api.set(slices=[new], tombstones=lost)
    enrol_again(fenced, monkeypatch)
    assert fenced.api.enrolments == 2
    assert fenced.refused(B) == "host.fenced"
    follow(fenced, 1, monkeypatch)
    assert fenced.agent.control_plane.trouble == ""
    assert fenced.refused(B) == "claim.deleted"
    fenced.start(new.id)


def test_what_is_claimed_again_after_a_fence_is_good_again(fenced: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same happens after an older database is restored: the generation may be one that the agent knows."""
    follow(fenced, 1, monkeypatch)
    enrol_again(fenced, monkeypatch)
    follow(fenced, 1, monkeypatch)
    fenced.start(B)
    fenced.api.away = True
    fenced.restart()
    fenced.start(B)


def test_an_epoch_that_is_not_confirmed_gives_nothing_back(fenced: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(fenced, 1, monkeypatch)
    new = claim(uuid4(), vm=VM)
    restored: dict[str, object] = {"epoch": uuid4(), "slices": [*fenced.api.document.slices, new]}
    fenced.api.set(epoch_confirmed=False, **restored)
    enrol_again(fenced, monkeypatch)
    fenced.agent.control_plane._doubtful_pause_s = 0
    follow(fenced, 2, monkeypatch)
    assert fenced.refused(B) == "host.fenced"
    assert fenced.refused(new.id) == "host.unconfirmed"
    fenced.api.set(epoch_confirmed=True)
    fenced.learn()
    fenced.start(B)
    fenced.start(new.id)


def test_what_no_document_names_any_more_is_forgotten(fenced: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(fenced, 1, monkeypatch)
    fenced.api.set(slices=[])
    enrol_again(fenced, monkeypatch)
    follow(fenced, 2, monkeypatch)
    assert fenced.refused(B, metadata=(B,)) == "claim.missing"
    fenced.reconcile()
    assert fenced.slices() == {A}


def test_deleted_and_made_anew_it_is_another_host_with_nothing_of_the_old_one(
    fenced: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(fenced, 1, monkeypatch)
    new = claim(uuid4(), vm=VM)
    fenced.api.host_id = uuid4()
    fenced.api.document = Desired(
        host_id=fenced.api.host_id,
        epoch=fenced.api.document.epoch,
        epoch_confirmed=True,
        generation=1,
        groups=fenced.api.document.groups,
        slices=[new],
        tombstones=[],
    )
    monkeypatch.setattr(fenced.api, "_is_host", lambda _: None)
    enrol_again(fenced, monkeypatch)
    follow(fenced, 2, monkeypatch)
    assert fenced.refused(new.id) == "gpu.unknown_slices"
    assert fenced.refused(B, metadata=(B,)) == "claim.missing"
    fenced.kernel.close_slice(str(A))
    fenced.learn()
    fenced.clock.go(GRACE_S)
    fenced.learn()
    fenced.start(new.id)


def test_a_late_refusal_of_the_old_token_says_nothing_of_the_new_one(
    fenced: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fenced.store is not None
    old = fenced.store.credentials
    assert old is not None
    follow(fenced, 1, monkeypatch)
    enrol_again(fenced, monkeypatch)
    follow(fenced, 1, monkeypatch)
    fenced.store.fence(old)
    fenced.start(B)


def test_a_token_that_was_revoked_otherwise_leaves_claims_good(fenced: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ApiRefusedError("auth.invalid", "have the host re-enrolled")

    monkeypatch.setattr(fenced.api, "_authorised", refuse)
    follow(fenced, 2, monkeypatch)
    fenced.start(B)
