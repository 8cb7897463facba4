# SPDX-License-Identifier: Apache-2.0
"""Operations, with the drain of a host as the example: each step is run alone, so any of them may be the last."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy.exc import IntegrityError
from vgpumgr_api.actors import Actor
from vgpumgr_api.background import operating
from vgpumgr_api.db.database import now
from vgpumgr_api.db.progress import Operation as Row
from vgpumgr_api.fleet import cordoning, drain, fencing, hosts
from vgpumgr_api.installation import liveness
from vgpumgr_api.operations import operations
from vgpumgr_api.resources.paging import PageRequest

from tests.api.conftest import Clock
from tests.api.services.test_host_states import act, claim, drained, host_of, refused
from tests.api.services.test_slice_states import device, host_kinds, pass_time
from tests.api.world import Agent, World
from vgpumgr.wire.operations import HostDrain, Operation, OperationCancel, OperationState
from vgpumgr.wire.problem import Code, Subject
from vgpumgr.wire.resources import HostFence, HostPatch, HostState


def look(world: World, operation: Operation) -> Operation:
    """Looks at an operation like a client that asks; the result is current."""
    world.run(operating.look, operation.id)
    found: Operation = world.run(operations.get_operation, operation.id)
    return found


def cancel(world: World, operation: Operation, *, undo: bool = False, **options: Any) -> Operation:
    ended: Operation = world.run(operating.cancel_operation, operation.id, OperationCancel(undo=undo), **options)
    return ended


def step(world: World) -> bool:
    """Does what any replica does periodically."""
    done: bool = world.run(lambda session, _: operating.advance_next(session))
    return done


@pytest.fixture
def agent(world: World) -> Agent:
    world.tenant("acme")
    world.profile(name="small", share=100)
    return world.host("one")


def drained_with_a_slice(world: World, **request: Any) -> tuple[Operation, UUID]:
    one = claim(world)
    return drained(world, **request), one


def test_a_drain_lasts_until_the_last_slice_is_gone(world: World, agent: Agent) -> None:
    vm = uuid4()
    one, other = sorted([claim(world, vm_uuid=vm), claim(world, vm_uuid=vm)])
    begun = drained(world)
    assert (begun.kind, begun.target, begun.state, begun.done) == ("host.drain", "one", OperationState.RUNNING, False)
    assert (begun.progress.total, begun.progress.left) == (2, 2)
    assert begun.progress.waiting_for == [
        {"slice": str(each), "tenant": "acme", "vm_uuid": str(vm), "state": "claimed"} for each in (one, other)
    ]
    agent.report(slices=[device(one, opened=True)])
    assert look(world, begun).progress.waiting_for[0]["state"] == "attached"
    world.delete(one)
    assert look(world, begun).progress.left == 2
    agent.confirm_gone(one)
    seen = look(world, begun)
    assert (seen.progress.total, seen.progress.left) == (2, 1)
    assert seen.generation > begun.generation
    world.delete(other)
    agent.confirm_gone(other)
    ended = look(world, begun)
    assert (ended.state, ended.done, ended.error) == (OperationState.SUCCEEDED, True, None)
    assert ended.result == {"drained": 2, "unknown_slices": 0}
    assert (ended.progress.total, ended.progress.left, ended.progress.waiting_for) == (2, 0, [])
    assert ended.done_at is not None
    assert host_of(world).state is HostState.CORDONED
    assert host_kinds(world, str(begun.id)) == ["operation.started", "operation.succeeded"]
    assert look(world, begun) == ended


def test_a_host_without_slices_is_drained_at_once(world: World, agent: Agent) -> None:
    begun = drained(world, then="maintenance")
    assert (begun.state, begun.progress.total) == (OperationState.SUCCEEDED, 0)
    assert host_of(world).state is HostState.MAINTENANCE


def test_a_drain_labels_its_host_as_it_begins_or_does_neither(world: World, agent: Agent) -> None:
    """The labels tell everybody why the host is drained, and for whom."""
    before = act(world, hosts.patch_host, patch=HostPatch(labels={"zone": "a", "rack": "7"}))
    claim(world)
    begun = drained(world, labels={"why": "update", "rack": None})
    found = host_of(world)
    assert (found.state, found.labels) == ("draining", {"zone": "a", "why": "update"})
    assert found.generation == before.generation + 2
    assert begun.request["labels"] == {"why": "update", "rack": None}
    assert host_kinds(world, "one")[-2:] == ["host.draining", "host.labelled"]

    refused(Code.HOST_DRAINING, lambda: drained(world, labels={"why": "another"}))
    cancel(world, begun, undo=True)
    too_many = {f"key-{number}": "x" for number in range(63)}
    refused(Code.FIELD_INVALID, lambda: drained(world, labels=too_many))
    after = host_of(world)
    assert (after.state, after.labels) == ("ready", found.labels)


def test_any_replica_gets_it_on_without_being_asked(world: World, agent: Agent, clock: Clock) -> None:
    begun, one = drained_with_a_slice(world, then="maintenance")
    world.delete(one)
    agent.confirm_gone(one)
    assert step(world)
    assert not step(world)
    assert world.run(operations.get_operation, begun.id).state is OperationState.SUCCEEDED
    assert host_of(world).state is HostState.MAINTENANCE


def test_one_that_waits_is_looked_at_now_and_then(world: World, agent: Agent, clock: Clock) -> None:
    drained_with_a_slice(world)
    assert step(world)
    assert not step(world)
    clock.advance(operating.LOOK.total_seconds())
    assert step(world)


def test_of_one_kind_one_runs_on_a_host(world: World, agent: Agent) -> None:
    begun, _ = drained_with_a_slice(world)
    refusal = refused(Code.HOST_DRAINING, lambda: drained(world))
    assert str(begun.id) in refusal.detail
    assert [(one.code, one.about) for one in refusal.reasons] == [
        ("host.draining", Subject(kind="operation", id=begun.id))
    ]
    for service in (cordoning.cordon_host, cordoning.uncordon_host, cordoning.maintain_host):
        refused(Code.HOST_DRAINING, lambda service=service: act(world, service))

    def twice(session: Any, actor: Actor) -> None:
        operations.begin(
            session,
            actor,
            drain.KIND,
            target="one",
            target_id=agent.host_id,
            request=HostDrain(),
            notes={},
            deadline_s=None,
        )

    # The database itself refuses it, whatever the code does.
    with pytest.raises(IntegrityError):
        world.run(twice)


@pytest.mark.parametrize("before", [HostState.READY, HostState.CORDONED])
@pytest.mark.parametrize("undo", [True, False])
def test_a_cancelled_drain_leaves_the_host_as_asked(world: World, agent: Agent, before: HostState, undo: bool) -> None:
    one = claim(world)
    if before is HostState.CORDONED:
        act(world, cordoning.cordon_host)
    begun = drained(world)
    ended = cancel(world, begun, undo=undo)
    assert (ended.state, ended.done, ended.result, ended.error) == (OperationState.CANCELLED, True, None, None)
    assert ended.progress.waiting_for == [], "what was cancelled waits for nothing"
    assert host_of(world).state is (before if undo else HostState.CORDONED)
    assert world.slice(one).state == "claimed"
    refused(Code.OPERATION_DONE, lambda: cancel(world, begun))
    assert look(world, begun) == ended
    assert drained(world).id != begun.id


def test_a_drain_ends_no_maintenance(world: World, agent: Agent) -> None:
    """VMs do not start in maintenance, but they do start on a draining host."""
    claim(world)
    act(world, cordoning.maintain_host)
    for then in ("cordoned", "maintenance"):
        refusal = refused(Code.OBJECT_IN_USE, lambda then=then: drained(world, then=then))
        assert "cordon it" in refusal.detail
    assert agent.desired().host_state == "maintenance"
    act(world, cordoning.cordon_host)
    assert drained(world).state is OperationState.RUNNING


def test_an_empty_host_in_maintenance_is_drained_into_it_once_more(world: World, agent: Agent) -> None:
    """This allows a client to repeat a drain that has ended."""
    for _ in range(2):
        again = drained(world, then="maintenance")
        assert (again.state, again.result) == (OperationState.SUCCEEDED, {"drained": 0, "unknown_slices": 0})
        assert host_of(world).state is HostState.MAINTENANCE
    refused(Code.OBJECT_IN_USE, lambda: drained(world, then="cordoned"))


def test_a_cancellation_may_demand_what_was_seen(world: World, agent: Agent) -> None:
    begun, _ = drained_with_a_slice(world)
    refused(Code.GENERATION_STALE, lambda: cancel(world, begun, if_match=begun.generation + 1))
    assert cancel(world, begun, if_match=begun.generation).done


def test_a_drain_that_takes_too_long_fails_and_the_host_stays_cordoned(
    world: World, agent: Agent, clock: Clock
) -> None:
    begun, _ = drained_with_a_slice(world, deadline_s=100)
    pass_time(world, clock, 99)
    assert look(world, begun).state is OperationState.RUNNING
    pass_time(world, clock, 1)
    failed = look(world, begun)
    assert failed.state is OperationState.FAILED
    assert failed.error is not None
    assert failed.error.code == "operation.deadline"
    assert failed.progress.left == 1
    assert failed.result is None
    assert host_of(world).state is HostState.CORDONED
    assert host_kinds(world, str(begun.id))[-1] == "operation.failed"


def test_time_without_an_api_counts_for_no_drain(world: World, agent: Agent, clock: Clock) -> None:
    world.run(lambda session, _: liveness.beat(session))
    begun, one = drained_with_a_slice(world, deadline_s=100)
    clock.advance(24 * 3600)
    world.run(lambda session, _: liveness.beat(session))
    assert look(world, begun).state is OperationState.RUNNING
    pass_time(world, clock, 99)
    agent.report()
    world.delete(one)
    agent.confirm_gone(one)
    assert look(world, begun).state is OperationState.SUCCEEDED


def test_a_drain_ends_with_its_host(world: World, agent: Agent, clock: Clock) -> None:
    begun, _ = drained_with_a_slice(world)
    world.run(fencing.fence_host, "one", HostFence(confirm="one", force=True), if_match=host_of(world).generation)
    fenced = look(world, begun)
    assert fenced.error is not None
    assert (fenced.state, fenced.error.code) == (OperationState.FAILED, "host.fenced")
    assert host_of(world).operator_state is HostState.CORDONED
    refused(Code.HOST_FENCED, lambda: drained(world))


def test_a_drain_of_a_host_that_was_deleted_fails(world: World, agent: Agent) -> None:
    begun, one = drained_with_a_slice(world)
    world.delete(one)
    agent.confirm_gone(one)
    world.run(hosts.delete_host, "one", if_match=host_of(world).generation)
    gone = look(world, begun)
    assert gone.error is not None
    assert (gone.state, gone.error.code) == (OperationState.FAILED, "object.unknown")


def test_a_lost_slice_is_waited_for_as_well(world: World, agent: Agent) -> None:
    one = claim(world)
    world.run(fencing.fence_host, "one", HostFence(confirm="one", force=True), if_match=host_of(world).generation)
    again = world.enrolled("one", world.run(hosts.reenroll, "one").enroll_token)
    again.report()
    begun = drained(world)
    assert [each["state"] for each in begun.progress.waiting_for] == ["lost"]
    again.confirm_gone(one)
    assert look(world, begun).state is OperationState.SUCCEEDED


def test_a_step_that_breaks_off_is_taken_again(world: World, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each crash point: the process dies after any change of the last step, and none of the changes stays."""
    begun, one = drained_with_a_slice(world, then="maintenance")
    world.delete(one)
    agent.confirm_gone(one)
    before = host_of(world)

    class KilledError(Exception):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise KilledError

    for module, name in ((operations, "end"), (operations, "note"), (drain.host_states, "enter")):
        original = getattr(module, name)

        def after(*arguments: Any, original: Any = original, **options: Any) -> None:
            original(*arguments, **options)
            arguments[0].flush()
            die()

        for point in (die, after):
            with monkeypatch.context() as patch:
                patch.setattr(module, name, point)
                with pytest.raises(KilledError):
                    step(world)
            assert host_of(world) == before
            assert world.run(operations.get_operation, begun.id).state is OperationState.RUNNING
    assert step(world)
    assert world.run(operations.get_operation, begun.id).state is OperationState.SUCCEEDED
    assert host_of(world).state is HostState.MAINTENANCE
    assert host_kinds(world, str(begun.id)) == ["operation.started", "operation.succeeded"]


def test_operations_are_listed_by_what_they_are(world: World, agent: Agent) -> None:
    world.host("two")
    done = drained(world, "two")
    begun, _ = drained_with_a_slice(world)

    def found(**filters: Any) -> set[UUID]:
        return {one.id for one in world.run(operations.list_operations, PageRequest(), **filters).items}

    assert found() == {done.id, begun.id}
    assert found(state=OperationState.RUNNING) == {begun.id}
    assert found(target="two") == {done.id}
    assert found(kind="host.drain", state=OperationState.FAILED) == set()


def test_operations_are_kept_for_a_week_after_their_end(world: World, agent: Agent, clock: Clock) -> None:
    world.host("two")
    done = drained(world, "two")
    begun, _ = drained_with_a_slice(world)
    clock.advance(7 * 24 * 3600 - 1)
    assert not world.run(lambda session, _: operations.forget(session))
    assert world.run(operations.get_operation, done.id) == done
    clock.advance(1)
    assert not world.run(lambda session, _: operations.forget(session))
    refused(Code.OBJECT_UNKNOWN, lambda: world.run(operations.get_operation, done.id))
    assert world.run(lambda session, _: session.get(Row, begun.id)) is not None


def test_operations_are_for_who_runs_the_cloud(world: World, agent: Agent) -> None:
    begun, _ = drained_with_a_slice(world)
    tenant = world.tenant_actor("acme")
    for service, more in (
        (operations.get_operation, ()),
        (operating.look, ()),
        (operating.cancel_operation, (OperationCancel(),)),
    ):
        refused(
            Code.PERMISSION_DENIED,
            lambda service=service, more=more: world.run(service, begun.id, *more, actor=tenant),
        )
    refused(Code.PERMISSION_DENIED, lambda: world.run(operations.list_operations, PageRequest(), actor=agent.actor))
    refused(Code.OBJECT_UNKNOWN, lambda: world.run(operating.cancel_operation, uuid4(), OperationCancel()))


def test_a_claim_whose_host_was_drained_meanwhile_goes_elsewhere(
    world: World, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim chose its GPU while the host was ready; on PostgreSQL the drain comes in between."""
    from vgpumgr_api.claims import claim_rows

    world.host("two", inventory=[])
    changed: list[Operation] = []
    original = claim_rows.write

    def late(*arguments: Any, **more: Any) -> None:
        if not changed and not world.database.is_sqlite:
            changed.append(drained(world))
        original(*arguments, **more)

    monkeypatch.setattr(claim_rows, "write", late)
    if world.database.is_sqlite:  # has one writer at a time, so nothing comes in between
        claim(world)
        return
    refused(Code.CAPACITY_NONE, lambda: claim(world))
    assert changed[0].state is OperationState.SUCCEEDED
    assert world.quota("acme").used_slices == 0
    assert {gpu.used_share_permille for gpu in world.gpus()} == {0}


def test_who_advances_all_that_is_due_comes_to_an_end(world: World, clock: Clock) -> None:
    """This holds for any number: the first operation is due again before the last one was looked at."""
    world.tenant("acme")
    world.profile(name="small", share=100)
    for name in ("one", "two", "three"):
        world.host(name)
        claim(world)  # on the only host in state ready
        drained(world, name)
    clock.advance(operating.LOOK.total_seconds())
    due_by = world.database.run(now, read_only=True)
    looked = 0
    while world.database.run(lambda session: operating.advance_next(session, due_by=due_by)):
        looked += 1
        clock.advance(operating.LOOK.total_seconds())
        assert looked <= 3
    assert looked == 3
