# SPDX-License-Identifier: Apache-2.0
"""A slice that is moved while everything else happens to it at the same moment: one charge, and at most one host that
can start VMs with it.
"""

from typing import Any

from tests.api.concurrency.races import Fleet, Host, at_once, outcomes, vm

ROUNDS = 3
WIDE = 8


class Pair:
    """A claim on one host, and another host."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.tenant = fleet.tenant({"slices": 1})
        self.old, self.new = fleet.host(), fleet.host()
        claim = fleet.claim(self.tenant, fleet.profile(), host=self.old.name, vm_uuid=vm())
        self.slice_id: str = claim["id"]

    def moving(self, to: Host | None = None) -> Any:
        body = {"host": (to or self.new).name}
        return self.fleet.ask("POST", f"/v1/slices/{self.slice_id}:move", body)

    def begin(self) -> str:
        reply = self.moving()()
        assert reply.status == 201, reply.body
        made: str = reply.body["id"]
        return made

    def aborting(self, made: str) -> Any:
        return self.fleet.ask("POST", f"/v1/slices/{made}:abort-move")

    def deleting(self, made: str) -> Any:
        return self.fleet.ask("DELETE", f"/v1/slices/{made}")

    def confirming(self) -> Any:
        document = self.old.desired()
        return self.old.sending(self.old.report(document, absent=(self.slice_id,)))

    def startable(self) -> list[str]:
        """The slices with which VMs may start, on both hosts."""
        return [one["id"] for host in (self.old, self.new) for one in host.desired()["slices"]]

    def whole(self, *, used: int) -> None:
        assert self.fleet.quota(self.tenant)["used_slices"] == used
        assert self.fleet.audit.violations() == []


def test_of_several_moves_one_is_made(fleet: Fleet) -> None:
    for _ in range(ROUNDS):
        pair, other = Pair(fleet), fleet.host()
        replies = at_once([pair.moving(host) for host in [pair.new, other] * (WIDE // 2)])
        assert set(outcomes(replies)) == {"done", "slice.moved"}
        assert len({reply.body["id"] for reply in replies if reply.status == 201}) == 1
        assert pair.startable() == []
        pair.whole(used=1)


def test_a_move_and_a_deletion(fleet: Fleet) -> None:
    for _ in range(ROUNDS):
        pair = Pair(fleet)
        moved, deleted = at_once([pair.moving(), pair.deleting(pair.slice_id)])
        assert (moved.status, deleted.status) in ((201, 202), (409, 202))
        assert pair.startable() == []
        pair.whole(used=1)


def test_an_abort_and_what_ends_the_move(fleet: Fleet) -> None:
    for _ in range(ROUNDS):
        pair = Pair(fleet)
        made = pair.begin()
        aborted, reported = at_once([pair.aborting(made), pair.confirming()])
        assert reported.status == 200
        assert (aborted.status, aborted.code) in ((200, ""), (409, "slice.moved"))
        assert pair.startable() == [pair.slice_id if aborted.status == 200 else made]
        pair.whole(used=1)


def test_an_abort_a_deletion_and_a_report(fleet: Fleet) -> None:
    for _ in range(ROUNDS):
        pair = Pair(fleet)
        made = pair.begin()
        aborted, deleted, _ = at_once([pair.aborting(made), pair.deleting(made), pair.confirming()])
        assert aborted.status in (200, 409)
        assert deleted.status == 202
        assert pair.startable() == ([pair.slice_id] if aborted.status == 200 else [])
        pair.whole(used=1)


def test_a_fence_of_the_host_that_is_left(fleet: Fleet) -> None:
    for _ in range(ROUNDS):
        pair = Pair(fleet)
        moved, fenced = at_once([pair.moving(), pair.old.fencing()])
        assert fenced.status == 200, fenced.body
        assert (moved.status, moved.code) in ((201, ""), (409, "slice.releasing"))
        begun = moved.status == 201
        assert [one["id"] for one in pair.new.desired()["slices"]] == ([moved.body["id"]] if begun else [])
        pair.whole(used=int(begun))


def test_a_fence_and_an_abort(fleet: Fleet) -> None:
    for _ in range(ROUNDS):
        pair = Pair(fleet)
        made = pair.begin()
        aborted, fenced = at_once([pair.aborting(made), pair.old.fencing()])
        assert fenced.status == 200, fenced.body
        assert (aborted.status, aborted.code) in ((200, ""), (409, "slice.moved"))
        assert [one["id"] for one in pair.new.desired()["slices"]] == ([] if aborted.status == 200 else [made])
        pair.whole(used=int(aborted.status != 200))


def test_a_fence_of_the_host_where_it_goes(fleet: Fleet) -> None:
    for _ in range(ROUNDS):
        pair = Pair(fleet)
        moved, fenced = at_once([pair.moving(), pair.new.fencing()])
        assert fenced.status == 200, fenced.body
        assert moved.code in ("", "capacity.none")
        assert [one["id"] for one in pair.old.desired()["slices"]] == ([] if moved.status == 201 else [pair.slice_id])
        pair.whole(used=int(moved.status != 201))
