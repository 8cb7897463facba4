# SPDX-License-Identifier: Apache-2.0
"""An executor whose children answer `vgpu-exercise windows` (tests/kmod/exercise/windows.h); they compute nothing.

As a program it serves one slice: `python3 -m tests.rig.window_executor UUID` prints `ready` when it is bound.
"""

import errno
import os
import select
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.rig.leasing import Bound, Child, Event, bound

COMMAND, REQUEST, ANSWER = 0, 4, 8
ECHO, RING, END = 1, 2, 3


@contextmanager
def unless_changed() -> Iterator[None]:
    """Ignore the refusal of a call about a window whose state has just changed: an event reports the change."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ENODEV):
            raise


@dataclass
class Served:
    """A child, and the last request of its guest that it has processed."""

    files: Child
    request: int = 0

    def word(self, offset: int) -> int:
        return int(struct.unpack_from("<I", self.files.window, offset)[0])

    def looked(self) -> bool:
        """Do what the guest asks for, if it asks; returns False when the child must end."""
        request = self.word(REQUEST)
        if request == self.request:
            return True
        self.request = request
        command = self.word(COMMAND)
        if command == ECHO:
            struct.pack_into("<I", self.files.window, ANSWER, request)
        if command in (ECHO, RING):
            with unless_changed():
                self.files.ring()
        return command != END


@dataclass
class WindowExecutor:
    """Serves the windows of one slice until it is told to stop. Only its thread uses the children.

    While `lets_go` is set, windows that the guest has closed are free again at once; clear it to keep them closing.
    """

    executor: Bound
    lets_go: threading.Event = field(default_factory=threading.Event)
    children: dict[int, Served] = field(default_factory=dict)
    closing: list[int] = field(default_factory=list)
    rings: int = 0
    """The number of rings by guests that were reported to their children."""

    def __post_init__(self) -> None:
        self.lets_go.set()

    def serve(self, stop: int) -> None:
        """Serve until the file `stop` is readable, or the slice detaches the executor."""
        while True:
            watched = {child.files.signals(): number for number, child in self.children.items()}
            poller = select.poll()
            for fd in (stop, self.executor.fd, *watched):
                poller.register(fd, select.POLLIN)
            for fd, what in poller.poll(50 if self.closing else None):
                if fd == stop or (what & select.POLLHUP and fd == self.executor.fd):
                    self.close()
                    return
                if fd == self.executor.fd:
                    self._follow(*self.executor.event())
                elif watched[fd] in self.children:
                    self._hear(watched[fd])
            if self.lets_go.is_set():
                self._let_go()

    def close(self) -> None:
        """Drop all children at once, like a SIGKILL of their executor."""
        for number in tuple(self.children):
            self.children.pop(number).files.close()

    def _follow(self, event: Event, number: int, _sequence: int) -> None:
        if event is Event.OPENED:
            with unless_changed():
                self.children[number] = Served(Child(self.executor.window(number)))
                self._look(number)
        elif event is Event.CLOSED:
            if number in self.children:
                self.children.pop(number).files.close()
            self.closing.append(number)

    def _let_go(self) -> None:
        while self.closing:
            self.executor.closed(self.closing.pop())

    def _hear(self, number: int) -> None:
        signals = self.children[number].files.signalled(0)
        if signals > 0:
            self.rings += signals
            self._look(number)
        elif signals < 0:
            self.children.pop(number).files.close()

    def _look(self, number: int) -> None:
        if not self.children[number].looked():
            self.children.pop(number).files.close()
            with unless_changed():
                self.executor.lost(number)


@contextmanager
def window_executor(uuid: str) -> Iterator[WindowExecutor]:
    """A thread of this process serves the slice while the body runs. An exception in it is raised again at the end."""
    with bound(uuid) as executor:
        serving = WindowExecutor(executor)
        ended, end = os.pipe()
        raised: list[BaseException] = []

        def serve() -> None:
            try:
                serving.serve(ended)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield serving
        finally:
            os.close(end)
            thread.join()
            os.close(ended)
            if raised:  # beside the body's own exception, which may be a consequence
                raise raised[0]


def main() -> None:
    with bound(sys.argv[1]) as executor:
        print("ready", flush=True)
        WindowExecutor(executor).serve(sys.stdin.fileno())


if __name__ == "__main__":
    main()
