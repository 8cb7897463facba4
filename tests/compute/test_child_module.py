# SPDX-License-Identifier: Apache-2.0
"""A child of a VM's guest. It reads and writes a file of the kernel module instead of a socket of the broker.

The tests use a terminal as this file. Without the module, only a terminal is one descriptor for both directions and no
socket.
"""

import os
import select
import termios
import tty
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.compute.executor_rig import (
    BELL,
    ECHO,
    LENT,
    LIMIT_S,
    READY,
    REPLY_RING_AT,
    REQUEST,
    REQUEST_RING_AT,
    RING,
    SERVING,
    SLEEPING,
    SPACE,
    TAIL,
    WORK,
    Child,
    Slice,
    StreamRequest,
    make_product,
    run_slice,
    wait_for,
)

COUNT_BYTES = 8
KERNEL = 77
SHORT_NS = 1000


@dataclass
class Guest:
    """A child, and the module's end of its stream file."""

    child: Child
    module: int

    def request(self) -> StreamRequest:
        """Return the child's next request of any kind."""
        data = b""
        while len(data) < REQUEST.size:
            assert select.select([self.module], [], [], LIMIT_S)[0], "no request"
            data += os.read(self.module, REQUEST.size - len(data))
        op, flags, lease, kernel_id, _, hint_ns = REQUEST.unpack(data)
        return StreamRequest(op, flags, lease, kernel_id, hint_ns)

    def ring(self) -> None:
        """Make the child look, like the guest or a change of the lease page does."""
        os.write(self.module, (1).to_bytes(COUNT_BYTES, "little"))

    def publish(self) -> None:
        """Set the tail of the request ring. A guest's futex cannot wake the child."""
        self.child.window.words.wholes[(REQUEST_RING_AT + TAIL) // 8] = self.child.window.tail

    def put(self, op: int, value: int = 0, *, kernel_id: int = 0) -> int:
        call = self.child.window.put(op, value, kernel_id=kernel_id, ring=False)
        self.publish()
        self.ring()
        return call


@pytest.fixture
def tenant(tmp_path: Path) -> Iterator[Slice]:
    make_product()
    with run_slice(tmp_path) as slice_:
        yield slice_


@pytest.fixture
def guest(tenant: Slice) -> Iterator[Guest]:
    module, theirs = os.openpty()
    tty.setraw(theirs)
    attributes = termios.tcgetattr(theirs)
    attributes[6][termios.VMIN] = COUNT_BYTES
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    guest = Guest(tenant.start(arbiter=theirs), module)
    os.close(theirs)
    yield guest
    os.close(guest.module)


def test_a_child_that_serves_rings_for_its_guest(guest: Guest) -> None:
    assert guest.request() == StreamRequest(RING, 0, 0, 0, 0)
    assert guest.child.window.state == SERVING


def test_the_module_s_ring_wakes_a_child_for_requests(guest: Guest) -> None:
    for _ in range(20):
        call = guest.put(ECHO, 1)
        assert guest.child.window.reply().call == call


def test_a_guest_that_sleeps_is_woken_by_the_module(guest: Guest) -> None:
    words = guest.child.window.words
    # One ring for the state and one for the bell, from the start of the child.
    assert [guest.request().op for _ in range(2)] == [RING, RING]
    bell = guest.child.window.word(REPLY_RING_AT, BELL)
    words.halves[(REPLY_RING_AT + SLEEPING) // 4] = 1
    guest.put(ECHO, 1)
    assert guest.request() == StreamRequest(RING, 0, 0, 0, 0)
    assert guest.child.window.word(REPLY_RING_AT, BELL) == bell + 1
    # If nobody sleeps, the child requests no wake-up: its next request is a different one.
    words.halves[(REPLY_RING_AT + SLEEPING) // 4] = 0
    guest.put(ECHO, 1)
    guest.put(WORK, SHORT_NS, kernel_id=KERNEL)
    assert guest.request() == StreamRequest(READY, 0, 0, KERNEL, SHORT_NS)


def test_a_child_asks_the_module_and_works_when_the_lease_page_has_changed(tenant: Slice, guest: Guest) -> None:
    assert [guest.request().op for _ in range(2)] == [RING, RING]
    guest.put(WORK, SHORT_NS, kernel_id=KERNEL)
    assert guest.request() == StreamRequest(READY, 0, 0, KERNEL, SHORT_NS)
    tenant.set_lease(1, LENT)
    guest.ring()
    assert guest.child.window.reply().op == WORK
    wait_for(lambda: guest.child.state == (1, False), "the end of the work")


def test_a_guest_that_waits_for_room_is_woken_by_the_module(guest: Guest) -> None:
    assert [guest.request().op for _ in range(2)] == [RING, RING]
    space = guest.child.window.word(REQUEST_RING_AT, SPACE)
    guest.child.window.words.halves[(REQUEST_RING_AT + SPACE - 4) // 4] = 1  # the client marks the ring as full
    guest.put(ECHO, 1)
    assert guest.request().op == RING
    assert guest.child.window.word(REQUEST_RING_AT, SPACE) == space + 1


def test_the_end_of_its_stream_ends_the_child(tenant: Slice, guest: Guest) -> None:
    os.close(guest.module)
    guest.module = os.open("/dev/null", os.O_RDONLY)
    reason = tenant.wait_for_exit(guest.child.number).reason
    # The end of a terminal can also look like an error.
    assert reason == "its window has ended" or reason.startswith("the module's stream: ")
