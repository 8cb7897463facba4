# SPDX-License-Identifier: Apache-2.0
"""A child and its rings: a hostile client that writes into them harms only its own child."""

import struct
from collections.abc import Iterator

import pytest

from tests.compute.executor_rig import (
    BELL,
    ECHO,
    HEAD,
    HEADER,
    REPLY_RING_AT,
    REQUEST_DATA_AT,
    REQUEST_RING_AT,
    RING_BYTES,
    SLEEP,
    TAIL,
    Child,
    Slice,
    Window,
    make_product,
    run_slice,
)


@pytest.fixture(scope="module")
def tenant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slice]:
    make_product()
    with run_slice(tmp_path_factory.mktemp("slice")) as slice_:
        yield slice_


@pytest.fixture
def child(tenant: Slice) -> Iterator[Child]:
    child = tenant.start()
    yield child
    if child.number not in tenant.exited:
        tenant.kill(child.number)
        tenant.wait_for_exit(child.number)


def forge_tail(tail: int) -> object:
    return lambda window: window.publish(tail)


def forge_message(size: int, op: int, there: int, at: int = 0) -> object:
    def forge(window: Window) -> None:
        HEADER.pack_into(window.memory, REQUEST_DATA_AT + at, size, op, 0, 1)
        window.publish(there)

    return forge


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(forge_tail(RING_BYTES + 8), id="more than the ring holds"),
        pytest.param(forge_tail(-8), id="a tail before the head"),
        pytest.param(forge_tail(2**63), id="a tail far away"),
        pytest.param(forge_tail(3), id="a tail between words"),
        pytest.param(forge_message(0, ECHO, 32), id="no length"),
        pytest.param(forge_message(8, ECHO, 32), id="shorter than a header"),
        pytest.param(forge_message(17, ECHO, 32), id="a length between words"),
        pytest.param(forge_message(2**32 - 8, ECHO, 32), id="a length of four gigabytes"),
        pytest.param(forge_message(64 * 1024 + 8, ECHO, RING_BYTES), id="longer than a message may be"),
        pytest.param(forge_message(40, ECHO, 32), id="beyond the tail"),
        pytest.param(forge_message(16, 0, 32), id="a skip that ends before the ring does"),
        pytest.param(forge_message(16, 99, 16), id="an operation that the backend does not know"),
        pytest.param(forge_message(40, ECHO, 40), id="a request of another size"),
    ],
)
def test_a_forged_request_ring_ends_the_child(tenant: Slice, child: Child, forge: object) -> None:
    forge(child.window)  # type: ignore[operator]
    exited = tenant.wait_for_exit(child.number)
    assert exited.reason.startswith("request")
    assert child.window.state == 2
    assert tenant.start().window.ask(ECHO, 1).value == 0


@pytest.mark.parametrize("head", [8, RING_BYTES, 2**64 - 8, 4])
def test_a_forged_head_of_the_reply_ring_ends_the_child(tenant: Slice, child: Child, head: int) -> None:
    child.window.words.wholes[(REPLY_RING_AT + HEAD) // 8] = head
    child.window.put(ECHO, 1)
    assert tenant.wait_for_exit(child.number).reason == "replies: the head of the reply ring is invalid"


def test_indices_that_the_client_overwrites_are_not_read_back(child: Child) -> None:
    window = child.window
    for index in range(3):
        window.words.wholes[(REQUEST_RING_AT + HEAD) // 8] = 12345 + index
        window.words.wholes[(REPLY_RING_AT + TAIL) // 8] = 99
        call = window.put(ECHO, 1)
        # The child keeps its own copy of the reply ring's tail and continues from it.
        while window.word(REPLY_RING_AT, TAIL) == 99:
            bell = window.word(REPLY_RING_AT, BELL)
            window.words.halves[(REPLY_RING_AT + 128) // 4] = 1
            if window.word(REPLY_RING_AT, TAIL) == 99:
                window.words.wait(REPLY_RING_AT + BELL, bell, 0.05)
        assert window.reply().call == call


def test_messages_wrap_at_the_ring_s_end(child: Child) -> None:
    window = child.window
    for _ in range(2 * RING_BYTES // SLEEP.size // 512):
        calls = [window.put(ECHO, 1, ring=index == 511) for index in range(512)]
        assert [window.reply().call for _ in calls] == calls


def test_a_skip_may_be_as_short_as_one_word(child: Child) -> None:
    window = child.window
    window.tail = window.head = 0
    # A 16-byte message would end the child, because the backend refuses it. So the ring is filled with echoes, and a
    # skip starts 8 bytes before its end.
    rest = RING_BYTES - 32
    while window.tail < rest:
        window.put(ECHO, 1, ring=False)
        if window.tail % (64 * 32) == 0 or window.tail >= rest:
            window.publish(window.tail)
            while window.head < window.tail:
                window.reply()
    struct.pack_into("=IH", window.memory, REQUEST_DATA_AT + rest, 32, 0)
    window.tail += 32
    assert window.ask(ECHO, 1).value == 0


def test_a_client_that_reads_no_replies_loses_its_child_only(tenant: Slice, child: Child) -> None:
    neighbour = tenant.start()
    # One answer more than ring and overflow can hold.
    child.window.put(ECHO, 40 * RING_BYTES // SLEEP.size)
    assert tenant.wait_for_exit(child.number).reason == "replies: the client does not read replies"
    assert neighbour.window.ask(ECHO, 1).value == 0


def test_replies_that_wait_hold_back_requests_and_arrive_in_order(child: Child) -> None:
    window = child.window
    replies = 3 * RING_BYTES // SLEEP.size
    first = window.put(ECHO, replies)
    second = window.put(ECHO, 1)
    for index in range(replies):
        reply = window.reply()
        assert (reply.call, reply.value) == (first, index)
    assert window.reply().call == second


def test_a_flood_of_doorbells_delays_no_neighbour(tenant: Slice, child: Child) -> None:
    neighbour = tenant.start()
    for _ in range(2000):
        child.window.words.wake(REQUEST_RING_AT + BELL)
    assert neighbour.window.ask(ECHO, 1).value == 0
    assert child.window.ask(ECHO, 1).value == 0
