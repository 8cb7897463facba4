# SPDX-License-Identifier: Apache-2.0
"""Lists of the control client against a socket that plays the kernel: a list that changed during the read is read
again.
"""

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from vgpumgr.control import wire
from vgpumgr.control.netlink import Control
from vgpumgr.errors import DumpInterruptedError

FAMILY = 0x1C
ATTEMPTS = 8


class Kernel:
    """Answers the next requests in order, with the prepared answers."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sequence = 0

    def answers(self, *, answer_flags: int | None, end_flags: int) -> None:
        """Prepares an answer: an object, if there are flags for it, and the end of the list."""
        self._sequence += 1
        kinds = [] if answer_flags is None else [(FAMILY, answer_flags, bytes(4))]
        kinds.append((wire.DONE, end_flags, bytes(4)))
        self._end.send(
            b"".join(struct.pack("=IHHII", 16 + len(body), kind, flags, self._sequence, 0) + body
                     for kind, flags, body in kinds)
        )  # fmt: skip

    def asked(self) -> int:
        """Returns how many requests arrived."""
        count = 0
        while True:
            try:
                self._end.recv(1 << 16)
            except BlockingIOError:
                return count
            count += 1


@pytest.fixture
def ends() -> Iterator[tuple[Control, Kernel]]:
    ours, kernels = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kernels.setblocking(False)
    ours.settimeout(10)
    control = Control.__new__(Control)
    control._lock, control._sequence, control._socket, control._family = threading.Lock(), 0, ours, FAMILY
    with ours, kernels:
        yield control, Kernel(kernels)


def test_a_list_that_changed_meanwhile_is_asked_for_again(ends: tuple[Control, Kernel]) -> None:
    """Sometimes only the end of the list has the flag, also that of an empty list."""
    control, kernel = ends
    kernel.answers(answer_flags=wire.DUMP_INTERRUPTED, end_flags=0)
    kernel.answers(answer_flags=0, end_flags=wire.DUMP_INTERRUPTED)
    kernel.answers(answer_flags=None, end_flags=wire.DUMP_INTERRUPTED)
    kernel.answers(answer_flags=None, end_flags=0)
    assert control.gpus() == []
    assert kernel.asked() == 4


def test_a_list_that_never_stands_still_is_given_up(ends: tuple[Control, Kernel]) -> None:
    control, kernel = ends
    for _ in range(ATTEMPTS):
        kernel.answers(answer_flags=None, end_flags=wire.DUMP_INTERRUPTED)
    with pytest.raises(DumpInterruptedError):
        control.gpus()
    assert kernel.asked() == ATTEMPTS
