# SPDX-License-Identifier: Apache-2.0
"""A host whose disk is full or read-only: the agent applies the desired state from memory and reports the reason."""

import contextlib
import errno
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vgpumgr_agent import store
from vgpumgr_agent.helper import records
from vgpumgr_agent.refused import Refused

from tests.agent.fakeapi import FakeApi, claim, group
from tests.agent.fakekernel import FakeKernel
from tests.agent.host import VM, A, B, Host
from tests.agent.test_metrics import samples, show

REASON = "No space left on device"


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, REASON)


@contextlib.contextmanager
def filled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """While the block runs, neither agent nor helper can write."""
    with monkeypatch.context() as patch:
        patch.setattr(store, "write_durably", full)
        patch.setattr(records, "write_durably", full)
        yield


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], contextlib.AbstractContextManager[None]]:
    return lambda: filled(monkeypatch)


Disk = Callable[[], contextlib.AbstractContextManager[None]]


def weight(kernel: FakeKernel, tenant: str) -> int:
    return next(each.weight for (_, name), each in kernel.tenants.items() if name == tenant)


def cut(host: Host) -> None:
    """An operator cuts the quota of blue."""
    host.api.set(groups=[group("blue", 100), group("green", 300)])
    host.learn()


def test_a_cut_of_a_quota_is_enforced_and_told_as_not_kept(claimed: Host, disk: Disk, tmp_path: Path) -> None:
    claimed.start(A)
    before = claimed.api.document.generation
    show(claimed, tmp_path / "agent.prom")
    with disk():
        cut(claimed)
        assert weight(claimed.kernel, "blue") == 100
        told = claimed.api.last()
        assert told.refusals[0].startswith(f"cannot write {claimed.directory / 'state'}: {REASON}")
        assert told.desired_generation == before
        assert samples(tmp_path / "agent.prom")["vgpumgr_agent_unkept"] == 1
        assert REASON in claimed.agent._status()
        assert claimed.agent.control_plane.trouble != REASON


def test_it_is_kept_and_confirmed_once_there_is_room(claimed: Host, disk: Disk, tmp_path: Path) -> None:
    show(claimed, tmp_path / "agent.prom")
    with disk():
        cut(claimed)
    claimed.reconcile()
    told = claimed.api.last()
    assert (told.refusals, told.desired_generation) == ([], claimed.api.document.generation)
    assert samples(tmp_path / "agent.prom")["vgpumgr_agent_unkept"] == 0
    claimed.restart()
    claimed.api.away = True
    claimed.reconcile()
    assert weight(claimed.kernel, "blue") == 100


def test_a_deletion_is_carried_out_but_confirmed_only_once_a_new_start_would_know_it(claimed: Host, disk: Disk) -> None:
    """Otherwise the API could grant its place to another claim, while a restarted agent without the API would still
    start its VM.
    """
    claimed.start(A)
    with disk():
        claimed.api.delete(A, groups=[group("blue", 600), group("green", 300)])
        claimed.learn()
        assert A not in claimed.slices()
        deleted = next(each for each in claimed.api.last().slices if each.id == A)
        assert (deleted.present, deleted.generation, deleted.startable) == (False, 1, True)
        assert claimed.refused(A) == "claim.deleted"
    claimed.reconcile()
    deleted = next(each for each in claimed.api.last().slices if each.id == A)
    assert (deleted.generation, deleted.startable) == (claimed.api.document.generation, False)


@pytest.mark.parametrize("new", [False, True])
def test_a_vm_is_told_why_it_does_not_start(claimed: Host, disk: Disk, *, new: bool) -> None:
    """The same holds for a VM whose claim came while the disk was full, so that only its device is known."""
    uuid = B
    if new:
        uuid = type(B)(int=77)
    with disk():
        if new:
            claimed.api.set(slices=[*claimed.api.document.slices, claim(uuid, vm=VM)])
        with pytest.raises(Refused, match=REASON) as refused:
            claimed.start(uuid)
        assert refused.value.code == "host.unwritable"
        claimed.reconcile()
        assert REASON in claimed.agent.hooks.failed()[uuid].text
    claimed.start(uuid)
    assert uuid in claimed.slices()


def test_a_slice_that_the_api_binds_stays_bound(claimed: Host, api: FakeApi, disk: Disk) -> None:
    api.set(slices=[claim(A, vm=None)])
    claimed.learn()
    claimed.start(A)
    claimed.release(A)
    claimed.reconcile()
    api.set(slices=[claim(B, vm=None)])
    claimed.learn()
    with disk():
        assert claimed.refused(B) == "host.unwritable"
        assert claimed.store is not None
        bound = claimed.store.standing(B).claim
        assert bound is not None
        assert bound.vm_uuid == VM


def test_a_one_time_token_is_not_spent_where_its_answer_could_not_be_kept(host: Host, disk: Disk) -> None:
    with disk(), pytest.raises(OSError, match=REASON):
        host.learn()
    assert host.api.enrolments == 0
    host.learn()
    assert host.api.enrolments == 1


def test_a_certificate_is_not_renewed_then_and_nothing_else_waits_for_it(host: Host, api: FakeApi, disk: Disk) -> None:
    api.gives_certificates = True
    host.learn()
    host.clock.go(2000)
    api.set(groups=[group("blue", 200)])
    with disk():
        host.learn()
        assert weight(host.kernel, "blue") == 200
    assert api.certificates == 1


def test_the_log_names_the_disk_once(claimed: Host, disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with disk():
        cut(claimed)
        claimed.reconcile()
    assert len([record for record in caplog.records if REASON in record.message]) == 1


def test_usage_that_cannot_be_counted_is_reported(claimed: Host) -> None:
    assert claimed.meter is not None
    claimed.meter._database.execute("PRAGMA query_only = ON")
    claimed.reconcile()
    claimed.reconcile()
    assert any("usage cannot be written" in refusal for refusal in claimed.api.last().refusals)
    claimed.meter._database.execute("PRAGMA query_only = OFF")
    claimed.reconcile()
    claimed.reconcile()
    assert claimed.api.last().refusals == []
