# SPDX-License-Identifier: Apache-2.0
"""The channel between a client and the gate, and harmful values that a client may write there."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import pytest

from tests.gpu.gapfill.channel import RING, SIZE, BrokenChannelError, ClientEnd, GateEnd, State, make
from vgpumgr.sched.core import ItemInfo


@pytest.fixture
def channel() -> Iterator[int]:
    fd = make()
    yield fd
    os.close(fd)


@pytest.fixture
def ends(channel: int) -> Iterator[tuple[ClientEnd, GateEnd]]:
    client, gate = ClientEnd(channel), GateEnd(channel)
    yield client, gate
    client.close()
    gate.close()


Ends = tuple[ClientEnd, GateEnd]


def test_asks_arrive_as_they_were_written(ends: Ends) -> None:
    client, gate = ends
    items = (ItemInfo(kernel_id=2**32 - 1, more=True, hint_ns=2**63), ItemInfo(kernel_id=0))
    for item in items:
        client.ask(item)
    news = gate.news()
    assert news is not None
    assert (news.asks, news.done, news.ended) == (items, 0, False)
    assert gate.news() is None


def test_the_ring_goes_round(ends: Ends) -> None:
    client, gate = ends
    for number in range(3 * RING):
        client.ask(ItemInfo(kernel_id=number))
        if number % 5 == 4 or number == 3 * RING - 1:
            client.done(number)
            news = gate.news()
            assert news is not None
            assert news.asks[-1].kernel_id == number


def test_it_is_full_until_the_gate_has_read(ends: Ends) -> None:
    client, gate = ends
    for _ in range(RING):
        assert not client.is_full
        client.ask(ItemInfo())
    assert client.is_full
    gate.news()
    assert not client.is_full


def test_the_end_of_a_request_counts_only_if_nothing_was_asked_since(ends: Ends) -> None:
    client, gate = ends
    client.ask(ItemInfo())
    client.end_request()
    news = gate.news()
    assert news is not None
    assert news.ended
    client.ask(ItemInfo())
    client.end_request()
    client.ask(ItemInfo())
    news = gate.news()
    assert news is not None
    assert not news.ended


def test_grants_and_eviction_are_seen(ends: Ends) -> None:
    client, gate = ends
    assert (client.granted, client.state) == (0, State.OPEN)
    gate.grant()
    gate.evict()
    assert (client.granted, client.state) == (1, State.EVICTED)


def test_a_client_cannot_shrink_the_file_under_the_gate(channel: int) -> None:
    for size in (0, SIZE + 4096):
        with pytest.raises(PermissionError):
            os.ftruncate(channel, size)


# ---- malice: words as a client may write them


ASKED, DONE, ENDED, GRANTED, STATE = 0, 1, 2, 9, 10


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({ASKED: 2 + RING + 1}, "asked goes from 2"),
        ({ASKED: 2**64 - 1}, "asked goes from 2"),
        ({ASKED: 1}, "asked goes from 2 to 1"),
        ({DONE: 3}, "done goes from 1 to 3 of 2"),
        ({DONE: 0}, "done goes from 1 to 0"),
        ({ENDED: 3}, "ended goes from 2 to 3"),
        ({ENDED: 1}, "ended goes from 2 to 1"),
    ],
)
def test_counts_that_cannot_be_break_the_channel(
    channel: int, ends: Ends, words: dict[int, int], complaint: str
) -> None:
    client, gate = ends
    client.ask(ItemInfo())
    client.ask(ItemInfo())
    client.done(1)
    client.end_request()
    assert gate.news() is not None
    scribble(channel, words)
    with pytest.raises(BrokenChannelError, match=complaint):
        gate.news()


def test_unknown_flags_break_the_channel(channel: int, ends: Ends) -> None:
    _, gate = ends
    scribble(channel, {512: 2 << 32, ASKED: 1})
    with pytest.raises(BrokenChannelError, match="flags 0x2"):
        gate.news()


def test_the_gate_does_not_believe_what_it_wrote_itself(channel: int, ends: Ends) -> None:
    client, gate = ends
    scribble(channel, {8: 77, GRANTED: 99, STATE: 1})
    client.ask(ItemInfo(kernel_id=3))
    news = gate.news()
    assert news is not None
    assert news.asks == (ItemInfo(kernel_id=3),)
    gate.grant()
    assert client.granted == 1


def scribble(channel: int, words: dict[int, int]) -> None:
    with mmap.mmap(channel, SIZE) as memory:
        for word, value in words.items():
            memory[word * 8 : word * 8 + 8] = value.to_bytes(8, "little")
