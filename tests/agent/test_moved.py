# SPDX-License-Identifier: Apache-2.0
"""A claim that moved to another host, or is on its way from one: the hook refuses its VM and says why."""

from uuid import UUID

from tests.agent.fakeapi import claim, group
from tests.agent.host import OTHER_VM, VM, A, B, C, Host
from vgpumgr.wire.fleet import Arriving, DesiredSlice, Moved, Tombstone

NEW = UUID(int=9)


def announce(host: Host, *, dead: bool = True) -> None:
    """Claim A moved away, and claim NEW is on its way to this host."""
    host.api.set(
        groups=[group("blue", 600), group("green", 300)],
        slices=[claim(B, vm=VM), claim(C, vm=OTHER_VM, tenant="green")],
        tombstones=[Tombstone(id=A, generation=2)] if dead else [],
        moved=[Moved(id=A, slice_id=NEW, host="two")],
        arriving=[Arriving(id=NEW, from_host="three")],
    )


def name(host: Host, one: DesiredSlice) -> None:
    """The move ends, successfully or not."""
    others = [each for each in host.api.document.slices if each.id in (B, C)]
    host.api.set(slices=[one, *others], tombstones=[], moved=[], arriving=[])


def test_the_old_host_never_starts_the_vm_again(claimed: Host) -> None:
    claimed.start(A)
    claimed.kernel.open(str(A))
    claimed.learn()
    announce(claimed)
    claimed.learn()
    assert claimed.refused(A) == "claim.moved"
    assert A in claimed.slices()
    claimed.kernel.close_slice(str(A))
    claimed.release(A)
    claimed.reconcile()
    assert A not in claimed.slices()
    assert not next(one for one in claimed.api.last().slices if one.id == A).startable
    announce(claimed, dead=False)
    claimed.learn()
    assert claimed.refused(A) == "claim.moved"
    assert claimed.refused(metadata=(A,)) == "claim.moved"
    assert claimed.slices() == set()


def test_a_host_that_comes_back_is_told_before_it_starts_a_vm(claimed: Host) -> None:
    """The host was dead when its slice was moved, so it still believes that the claim is its own."""
    claimed.stop()
    announce(claimed)
    claimed.kernel.reboot()
    claimed.restart()
    assert claimed.store is not None
    assert claimed.store.standing(A).claim is not None
    assert claimed.refused(A) == "claim.moved"


def test_it_knows_that_also_after_a_restart_without_the_api(claimed: Host) -> None:
    announce(claimed)
    claimed.learn()
    claimed.api.away = True
    claimed.restart()
    assert claimed.refused(A) == "claim.moved"
    assert claimed.refused(NEW) == "claim.moving"


def test_the_new_host_waits_for_the_old_one(claimed: Host) -> None:
    announce(claimed)
    claimed.learn()
    assert claimed.refused(NEW) == "claim.moving"
    assert claimed.refused(metadata=(NEW,)) == "claim.moving"
    assert claimed.slices() == set()
    name(claimed, claim(NEW, vm=VM))
    claimed.start(NEW)
    assert claimed.slices() == {NEW}


def test_an_aborted_move_leaves_the_claim_where_it_was(claimed: Host) -> None:
    announce(claimed)
    claimed.learn()
    name(claimed, claim(A, vm=VM, generation=3))
    claimed.learn()
    claimed.start(A)
    assert claimed.slices() == {A}
