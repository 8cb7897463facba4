# SPDX-License-Identifier: Apache-2.0
"""The memory that one client and the gate share. Asking is a store, so it adds almost no cost to a launch.

Words of 64 bits, the client's in one cache line, the gate's in another; then a ring of asks. All counts only grow:

    client: asked   asks written to the ring        gate: taken    asks read
            done    items that are complete               granted  items that an other client may launch
            ended   requests ended at this many asks      state    OPEN, or why the client is served no more

The GPU itself may store `done` at the end of each item, in the order of the stream. The gate does not trust the client:
it keeps its own copies, reads each word once, and never reads words that it wrote. The file is sealed, so a client
cannot shrink it under the gate. Stores become visible in order on x86-64, the only supported machine.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass
from enum import IntEnum

from vgpumgr.sched.core import ItemInfo

RING = 256
SIZE = 8192
_ASKED, _DONE, _ENDED = 0, 1, 2
_TAKEN, _GRANTED, _STATE = 8, 9, 10
_FIRST_ASK = 512
_WORDS = 2  # words of an ask: kernel id and flags in one, the hint in the other
_MORE = 1 << 32
_ID_MASK = (1 << 32) - 1


class State(IntEnum):
    """What the gate reports to a client."""

    OPEN = 0
    EVICTED = 1


class BrokenChannelError(Exception):
    """The client wrote impossible values and must not be served any more."""


def make() -> int:
    """Make the file of a new channel, for both ends."""
    fd = os.memfd_create("vgpumgr-gate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, SIZE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


class _End:
    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, SIZE)
        self._view = memoryview(self._map)
        self.words = self._view.cast("Q")

    def close(self) -> None:
        self.words.release()
        self._view.release()
        self._map.close()


class ClientEnd(_End):
    """The client's side."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.asked = 0

    @property
    def is_full(self) -> bool:
        return self.asked - self.words[_TAKEN] >= RING

    def ask(self, item: ItemInfo) -> None:
        """Write an ask. The ring must not be full."""
        at = _FIRST_ASK + self.asked % RING * _WORDS
        self.words[at] = item.kernel_id | (_MORE if item.more else 0)
        self.words[at + 1] = item.hint_ns
        self.asked += 1
        self.words[_ASKED] = self.asked

    def done(self, count: int) -> None:
        """Report the total number of completed asks."""
        self.words[_DONE] = count

    def end_request(self) -> None:
        self.words[_ENDED] = self.asked

    @property
    def done_offset(self) -> int:
        """The byte offset in the file where a GPU stores `done`."""
        return _DONE * 8

    @property
    def granted(self) -> int:
        return self.words[_GRANTED]

    @property
    def state(self) -> State:
        return State(self.words[_STATE])


@dataclass(frozen=True, kw_only=True)
class News:
    """What a client wrote since the last look, in the order of processing: asks, items done, end of a request."""

    asks: tuple[ItemInfo, ...]
    done: int
    ended: bool


class GateEnd(_End):
    """The gate's side."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._asked = self._done = self._ended = self._granted = 0

    def news(self) -> News | None:
        """Return what is new, or None. Raises BrokenChannelError."""
        words = self.words
        # An item is asked for before it is done. Reading in this order never shows `done` ahead of its ask.
        done, ended, asked = words[_DONE], words[_ENDED], words[_ASKED]
        if (asked, done, ended) == (self._asked, self._done, self._ended):
            return None
        if not self._asked <= asked <= self._asked + RING:
            raise BrokenChannelError(f"asked goes from {self._asked} to {asked}")
        if not self._done <= done <= asked:
            raise BrokenChannelError(f"done goes from {self._done} to {done} of {asked}")
        if not self._ended <= ended <= asked:
            raise BrokenChannelError(f"ended goes from {self._ended} to {ended} of {asked}")
        asks = tuple(self._item(number) for number in range(self._asked, asked))
        news = News(asks=asks, done=done - self._done, ended=ended == asked and ended != self._ended)
        self._asked, self._done, self._ended = asked, done, ended
        words[_TAKEN] = asked
        return news

    def _item(self, number: int) -> ItemInfo:
        at = _FIRST_ASK + number % RING * _WORDS
        said, hint_ns = self.words[at], self.words[at + 1]
        if said >= 2 * _MORE:
            raise BrokenChannelError(f"flags {said >> 32:#x}")
        return ItemInfo(kernel_id=said & _ID_MASK, more=bool(said & _MORE), hint_ns=hint_ns)

    def grant(self) -> None:
        self._granted += 1
        self.words[_GRANTED] = self._granted

    def evict(self) -> None:
        self.words[_STATE] = State.EVICTED
