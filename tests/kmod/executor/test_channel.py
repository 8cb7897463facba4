# SPDX-License-Identifier: Apache-2.0
"""The byte channel between a guest and the executor of its slice: bounded, and beside the scheduler."""

import os
import select

import pytest

from tests.kmod.executor.slices import Slice
from tests.rig import executor as rig
from tests.rig.executor import PIPE_BYTES, Executor, executor, program
from tests.rig.gpu import poll
from tests.rig.ring import CHANNEL_BYTES, ERROR, REG_CHANNEL, SENT
from tests.rig.vfio import BAR0, MSIX, eventfd, taken

ERROR_RING, ERROR_STORM, ERROR_DMA, ERROR_CHANNEL = 1, 3, 4, 13
WAITING, OPEN, CLOSED = range(3)


def moved(one: Executor, count: int) -> bytes:
    """So many bytes from the guest."""
    data = b""
    while len(data) < count:
        assert select.select([one.fd], [], [], 20)[0]
        data += os.read(one.fd, count - len(data))
    return data


def test_bytes_go_both_ways_beside_the_scheduler(blue: Slice, green: Slice) -> None:
    """While another slice has the engine, and without a turn on it."""
    irq = eventfd()
    blue.device.connect(MSIX, [irq])
    data = bytes(number * 7 % 251 for number in range(200_000))
    with executor(green.uuid) as other, program(blue.uuid, "sum"):
        green.launch()
        grant = other.granted()
        poll(lambda: blue.guest.channel_counts()[2] == OPEN)
        taken(irq)
        assert blue.guest.echo(blue.device, data) == data
        assert taken(irq)
        assert blue.run_ns() == 0
        other.complete(grant.number)
    os.close(irq)


def test_who_does_not_read_is_sent_no_more(blue: Slice) -> None:
    """Each side of a channel holds a bounded number of bytes for the other, and goes on where it stopped."""
    with executor(blue.uuid) as one:
        data = os.urandom(CHANNEL_BYTES)
        assert blue.guest.send(blue.device, data) == CHANNEL_BYTES
        poll(lambda: blue.guest.channel_counts()[0] == PIPE_BYTES)
        assert blue.guest.send(blue.device, data) == PIPE_BYTES
        assert blue.guest.send(blue.device, data) == 0
        assert moved(one, CHANNEL_BYTES + PIPE_BYTES) == data + data[:PIPE_BYTES]

        sent = 0
        while sent < CHANNEL_BYTES + PIPE_BYTES:
            assert one.ready(20) & select.POLLOUT
            sent += os.write(one.fd, data[: CHANNEL_BYTES + PIPE_BYTES - sent])
        poll(lambda: not one.ready() & select.POLLOUT)
        with pytest.raises(BlockingIOError):
            os.write(one.fd, b"x")
        poll(lambda: blue.guest.channel_counts()[1] == CHANNEL_BYTES)
        assert len(blue.guest.receive(blue.device)) == CHANNEL_BYTES
        assert one.ready(20) & select.POLLOUT


def test_bytes_wait_for_the_first_executor_and_end_with_it(blue: Slice) -> None:
    assert blue.guest.send(blue.device, b"hello") == 5
    with executor(blue.uuid) as one:
        assert moved(one, 5) == b"hello"
        poll(lambda: blue.guest.channel_counts()[2] == OPEN)
        os.write(one.fd, b"bye")
    poll(lambda: blue.guest.channel_counts()[2] == CLOSED)
    assert blue.guest.receive(blue.device) == b"bye"
    with executor(blue.uuid) as second:
        number = blue.launch()
        second.complete(second.granted().number)
        assert blue.done(number).status == rig.OK
        blue.guest.send(blue.device, b"anybody?")
        with pytest.raises(BlockingIOError):
            os.read(second.fd, 1)
        blue.enable()
        assert second.ready() & select.POLLHUP
    assert blue.guest.channel_counts()[2] == WAITING
    with executor(blue.uuid) as third:
        assert blue.guest.send(blue.device, b"again") == 5
        assert moved(third, 5) == b"again"


@pytest.mark.parametrize(
    ("sent", "received"),
    [(CHANNEL_BYTES + 1, None), (0x80000000, None), (0xFFFFFFFF, None), (None, 1), (None, 0xFFFFFFFF)],
)
def test_counts_that_cannot_be_stop_the_slice(blue: Slice, sent: int | None, received: int | None) -> None:
    with executor(blue.uuid) as one:
        blue.guest.count(blue.device, sent=sent, received=received)
        assert blue.error() == ERROR_CHANNEL
        assert one.ready(20) & select.POLLHUP


def test_counts_said_again_and_again_are_a_storm(blue: Slice) -> None:
    with executor(blue.uuid):
        at = blue.device.region(BAR0)[1] + SENT
        for _ in range(10_000):
            os.pwrite(blue.device.fd, bytes(4), at)
        assert blue.error() == ERROR_STORM


def test_a_channel_in_no_memory_stops_the_slice(blue: Slice) -> None:
    for address in (8, 2**64 - 64):
        blue.guest.enable(blue.device, channel_at=address, expected=ERROR)
        assert blue.error() == ERROR_RING
    blue.guest.enable(blue.device, channel_at=0x4000_0000)
    with executor(blue.uuid):
        assert blue.error() == ERROR_DMA
    blue.device.reset()
    assert blue.device.read(BAR0, REG_CHANNEL, 8) == bytes(8)
