# SPDX-License-Identifier: Apache-2.0
"""Leases of an engine that lends: who gets them and until when, what stops a child that does not stop, and what ends
with whom.

Tests here wait for an expiry itself, never for a fixed time. tests/time measures the shares.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.kmod.test_windows import CONTROL, RESET, Function, function
from tests.rig.gpu import Gpu, poll
from tests.rig.leasing import CHECKOUT, FOREVER_NS, Bound, Child, Event, Lease, State, bound, child
from tests.rig.ring import enable_unused
from vgpumgr.errors import BusyError

LONG_US = 100_000


class Slice:
    """A slice with its guest, its executor and one child for each window that it opens."""

    def __init__(self, uuid: str, guest: Function, executor: Bound, stack: ExitStack) -> None:
        self.uuid, self.guest, self.executor, self._stack = uuid, guest, executor, stack

    def child(self, number: int = 0) -> Child:
        self.guest.open(number)
        assert self.executor.event() == (Event.OPENED, number, 0)
        return self._stack.enter_context(child(self.executor, number))

    def answer(self, wanted: Event, *, done: int = 1) -> None:
        """The next request to the gate must be this one; answers it."""
        kind, _, sequence = self.executor.event()
        assert kind is wanted
        self.executor.gate(sequence, done=done)


@contextmanager
def served(uuid: str) -> Iterator[Slice]:
    with ExitStack() as stack:
        guest = stack.enter_context(function(uuid))
        executor = stack.enter_context(bound(uuid))
        yield Slice(uuid, guest, executor, stack)


@pytest.fixture
def lending(gpu: Gpu) -> Iterator[Gpu]:
    with gpu.leasing():
        for name in ("blue", "green"):
            gpu.tenant(name, weight=100, timeslice_us=LONG_US)
        yield gpu


@pytest.fixture
def blue(lending: Gpu) -> Iterator[Slice]:
    with served(lending.slice("blue")) as made:
        yield made


@pytest.fixture
def green(lending: Gpu) -> Iterator[Slice]:
    with served(lending.slice("green")) as made:
        yield made


def test_who_is_alone_has_a_lease_without_an_end_and_pays_for_what_it_uses(lending: Gpu, blue: Slice) -> None:
    worker = blue.child()
    assert worker.lease() == (0, Lease.NONE)
    assert worker.start() == 1
    assert worker.expires_ns() == FOREVER_NS
    used = lending.slice_stats(blue.uuid).run_ns
    poll(lambda: lending.slice_stats(blue.uuid).run_ns > used)
    worker.say(1, busy=False)
    used = lending.slice_stats(blue.uuid).run_ns
    assert lending.slice_stats(blue.uuid).run_ns == used
    # the child may go on by itself
    assert worker.lease() == (1, Lease.LENT)
    worker.say(1, busy=True)
    poll(lambda: lending.slice_stats(blue.uuid).run_ns > used)


def test_a_rival_gives_the_lease_an_end_and_gets_the_engine_with_the_yield(blue: Slice, green: Slice) -> None:
    first, second = blue.child(), green.child()
    first.start()
    second.ready()
    assert first.expires_ns() < FOREVER_NS
    assert first.lease() == (1, Lease.RECALLED)
    assert second.lease() == (0, Lease.NONE)
    first.give_back()
    assert first.lease() == (1, Lease.NONE)
    assert second.start() == 1
    assert first.lease() == (1, Lease.NONE)


def test_all_children_of_a_slice_share_its_lease(blue: Slice, green: Slice) -> None:
    ours = [blue.child(number) for number in range(2)]
    rival = green.child()
    assert [worker.start() for worker in ours] == [1, 1]
    rival.ready()
    ours[0].give_back()
    assert ours[1].lease() == (1, Lease.RECALLED)
    assert rival.lease() == (0, Lease.NONE)
    ours[1].give_back()
    assert rival.start() == 1


def test_who_does_not_stop_is_stopped_by_the_gate_and_goes_on_in_its_next_turn(blue: Slice, green: Slice) -> None:
    hog, rival = blue.child(), green.child()
    hog.start()
    rival.ready()
    kind, _, sequence = blue.executor.event()
    assert kind is Event.GATE_CLOSE
    assert hog.lease() == (1, Lease.EXPIRED)
    assert rival.lease() == (0, Lease.NONE)
    blue.executor.gate(sequence)
    assert rival.start() == 1
    assert hog.lease()[1] is Lease.NONE
    rival.give_back()
    blue.answer(Event.GATE_OPEN)
    assert hog.lease()[1] is Lease.LENT


def test_an_executor_whose_gate_fails_is_killed_and_its_slice_loses_its_turn(lending: Gpu, green: Slice) -> None:
    uuid = lending.slice("blue")
    rival = green.child()
    with function(uuid) as guest:
        guest.open(0)
        command = [sys.executable, "-m", "tests.rig.leasing", uuid]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT) as executor:
            assert executor.stdout is not None
            assert executor.stdout.readline() == "busy\n"
            rival.ready()
            assert executor.wait() == -signal.SIGKILL
        assert rival.start() == 1
        assert guest.state(0) is State.LOST


def test_the_end_of_an_executor_ends_its_lease(lending: Gpu, blue: Slice) -> None:
    uuid = lending.slice("green")
    with function(uuid) as guest:
        with bound(uuid) as executor:
            guest.open(0)
            executor.event()
            gone = Child(executor.window(0))
            gone.start()
            rival = blue.child()
            rival.ready()
            assert rival.lease()[1] is Lease.NONE
        assert rival.start() == 1
        assert gone.signalled() == -1
        gone.close()


def test_who_is_bound_next_does_not_answer_for_the_gate_of_who_was_before(lending: Gpu) -> None:
    uuid = lending.slice("blue")
    with function(uuid) as guest:
        with served(lending.slice("green")) as green:
            rival = green.child()
            with bound(uuid) as executor:
                children = []
                for number in range(2):
                    guest.open(number)
                    executor.event()
                    children.append(Child(executor.window(number)))
                children[0].start()
                rival.ready()
                # more than the slice may use outside leases: from now on its gate is closed then
                for processor_ns in (1, 3 * 10**9):
                    executor.gate(0, processor_ns=processor_ns)
            for left in children:
                left.close()
        # longer than a gate may take
        code = f"from tests.rig.leasing import bound\nwith bound({uuid!r}) as executor: executor.poll(3)"
        assert subprocess.run([sys.executable, "-c", code], check=False, cwd=CHECKOUT).returncode == 0


def test_a_child_that_ends_under_a_lease_gives_it_back(blue: Slice, green: Slice) -> None:
    rival = green.child()
    ours = blue.child()
    ours.start()
    rival.ready()
    assert rival.lease()[1] is Lease.NONE
    ours.let_go()
    blue.executor.lost(0)
    assert rival.start() == 1


def test_a_slice_without_a_configured_tenant_is_lent_nothing_until_it_has_one(gpu: Gpu) -> None:
    with gpu.leasing(), served(gpu.slice("later")) as made:
        worker = made.child()
        worker.ready()
        assert worker.lease() == (0, Lease.NONE)
        gpu.tenant("later", weight=100, timeslice_us=LONG_US)
        assert worker.start() == 1


def test_a_changed_cap_ends_a_lease_that_had_no_end(lending: Gpu, blue: Slice) -> None:
    worker = blue.child()
    worker.start()
    assert worker.expires_ns() == FOREVER_NS
    lending.tenant("blue", weight=100, timeslice_us=LONG_US, cap_us=10_000, cap_period_us=LONG_US)
    assert worker.expires_ns() < FOREVER_NS
    worker.give_back(want=True)
    lending.tenant("blue", weight=100, timeslice_us=LONG_US)
    poll(lambda: worker.lease()[1] is Lease.LENT)


def test_items_are_refused_by_an_engine_that_only_lends(lending: Gpu, blue: Slice) -> None:
    assert blue.guest.device.register(0x08) == 0
    enable_unused(blue.guest.device)
    blue.guest.device.set_register(CONTROL, RESET)
    # it serves the windows in any state of the rings
    assert blue.child().start() == 1
    with pytest.raises(BusyError):
        lending.sysfs.write_gpu(lending.address, "engine", "soft")
