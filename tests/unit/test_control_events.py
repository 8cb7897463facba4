# SPDX-License-Identifier: Apache-2.0
"""Watch against a socket that plays the kernel: order, gaps, overflow, unloading."""

import errno
import select
import socket
import sys
from collections.abc import Callable
from typing import Any

import pytest

from vgpumgr.control import events, family, protocol, wire
from vgpumgr.control.family import Family
from vgpumgr.control.model import Event, EventKind, Gpu, Snapshot
from vgpumgr.control.protocol import Command, EventAttribute
from vgpumgr.errors import ControlProtocolError, ControlUnavailableError, DumpInterruptedError

FAMILY = 0x1C
GPU = "0000:00:10.0"


class FakeControl:
    """Lists with the number in `sequence`; `fail` makes the next list fail; `on_list` is called for each list."""

    def __init__(self) -> None:
        self.sequence = 0
        self.groups = {"events": 7}
        self.fail = False
        self.on_list: Callable[[], None] = lambda: None

    def find_family(self) -> Family:
        return Family(id=FAMILY, groups=self.groups)

    def gpus(self) -> list[Gpu]:
        self.on_list()
        if self.fail:
            self.fail = False
            raise DumpInterruptedError("often")
        values: dict[str, Any] = dict.fromkeys(Gpu.__dataclass_fields__, 0)
        return [Gpu(**{**values, "name": GPU, "event_seq": self.sequence})]

    def tenants(self) -> list[Any]:
        return []

    slices = tenants


class FakeSocket:
    """The receiving end; `overflow` makes the next read fail like the kernel's."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.joined: list[int] = []
        self.overflow = False

    def setsockopt(self, level: int, _name: int, value: int) -> None:
        if level == 270:
            self.joined.append(value)

    def bind(self, address: tuple[int, int]) -> None:
        assert address == (0, 0)

    def recvmsg(self, size: int) -> Any:
        if self.overflow:
            self.overflow = False
            raise OSError(errno.ENOBUFS, "no buffer space")
        return self._end.recvmsg(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._end, name)


class Kernel:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._end, listening = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket = FakeSocket(listening)
        self.control = FakeControl()
        monkeypatch.setattr(events.socket, "socket", lambda *_: self.socket)

    def watch(self) -> events.Watch:
        return events.Watch(self.control)  # type: ignore[arg-type]

    def send(self, number: int, command: int, attributes: bytes) -> None:
        self._end.send(wire.encode_request(number, 0, 0, command, 1, attributes))

    def tell(self, sequence: int, command: int = Command.CREATED_NTF, **values: int | str) -> None:
        whole: dict[str, int | str] = {"seq": sequence, "time_ns": 5, "count": 1, "gpu": GPU, **values}
        self.send(
            FAMILY,
            command,
            b"".join(
                wire.encode_attribute(number, wire.encode_value(protocol.EVENT.type_of(number), value))
                for number, value in ((EventAttribute[name.upper()], value) for name, value in whole.items())
            ),
        )


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


def told(watch: events.Watch) -> list[int | str]:
    """Return the numbers of events; "snapshot" stands for a snapshot."""
    seen: list[int | str] = []
    while (found := watch.wait(0)) is not None:
        seen.append("snapshot" if isinstance(found, Snapshot) else found.sequence)
    return seen


def test_a_snapshot_comes_first_then_events_in_order(kernel: Kernel) -> None:
    watch = kernel.watch()
    kernel.control.sequence = 4
    kernel.tell(5)
    kernel.tell(6)
    assert told(watch) == ["snapshot", 5, 6]
    assert kernel.socket.joined == [family.CONTROL_FAMILY, 7]


def test_an_event_that_a_snapshot_has_already_is_given_and_is_no_hole(kernel: Kernel) -> None:
    watch = kernel.watch()
    kernel.control.sequence = 4
    for sequence in (3, 4, 5):
        kernel.tell(sequence)
    assert told(watch) == ["snapshot", 3, 4, 5]


def test_a_hole_is_filled_by_a_snapshot_once(kernel: Kernel) -> None:
    watch = kernel.watch()
    assert told(watch) == ["snapshot"]
    kernel.tell(1)
    kernel.tell(4)
    kernel.tell(6)
    kernel.control.sequence = 6
    assert told(watch) == [1, "snapshot", 4, 6]


def test_a_hole_that_no_gpu_is_left_to_explain_does_not_stop_the_watch(kernel: Kernel) -> None:
    watch = kernel.watch()
    told(watch)
    kernel.tell(9)
    kernel.tell(10)
    assert told(watch) == ["snapshot", 9, 10]


def test_an_overflow_makes_a_snapshot(kernel: Kernel) -> None:
    watch = kernel.watch()
    told(watch)
    kernel.tell(1)
    kernel.socket.overflow = True
    assert told(watch) == ["snapshot", 1]


def test_a_snapshot_after_an_overflow_waits_until_all_is_read(kernel: Kernel) -> None:
    """Until everything is read, the kernel drops events without room and reports nothing."""
    watch = kernel.watch()
    told(watch)
    unread: list[bool] = []
    kernel.control.on_list = lambda: unread.append(bool(select.select([kernel.socket], [], [], 0)[0]))
    kernel.tell(1)
    kernel.tell(2)
    kernel.socket.overflow = True
    assert told(watch) == ["snapshot", 1, 2]
    assert unread == [False]


def test_a_snapshot_that_fails_is_taken_again(kernel: Kernel) -> None:
    watch = kernel.watch()
    kernel.control.fail = True
    with pytest.raises(DumpInterruptedError):
        watch.wait(0)
    assert told(watch) == ["snapshot"]


def test_all_that_an_event_says_arrives(kernel: Kernel) -> None:
    watch = kernel.watch()
    told(watch)
    kernel.tell(1, Command.REVOKED_NTF, slice="u", tenant="blue", pid=7, comm="qemu", count=1)
    kernel.tell(2, Command.OVERRUN_NTF, tenant="blue", length_ns=9, limit_ns=8, count=3)
    kernel.tell(3, 99)
    assert watch.wait(0) == Event(
        kind=EventKind.REVOKED, sequence=1, time_ns=5, count=1, gpu=GPU, slice="u", tenant="blue", pid=7, comm="qemu"
    )
    second, third = watch.wait(0), watch.wait(0)
    assert isinstance(second, Event)
    assert (second.kind, second.length_ns, second.limit_ns, second.count) == (EventKind.OVERRUN, 9, 8, 3)
    assert isinstance(third, Event)
    assert third.kind == EventKind.OTHER


@pytest.mark.parametrize(
    ("number", "raises"), [(FAMILY, True), (FAMILY + 1, False)], ids=["our family", "another family"]
)
def test_a_family_that_goes_ends_only_its_own_watch(kernel: Kernel, number: int, raises: bool) -> None:
    watch = kernel.watch()
    told(watch)
    gone = wire.encode_attribute(family.FAMILY_ID, number.to_bytes(2, sys.byteorder))
    kernel.send(family.CONTROL_FAMILY, family.DELETE_FAMILY, gone)
    if raises:
        with pytest.raises(ControlUnavailableError):
            watch.wait(0)
    else:
        assert watch.wait(0) is None


def test_an_event_without_a_number_is_refused(kernel: Kernel) -> None:
    watch = kernel.watch()
    told(watch)
    kernel.send(FAMILY, Command.CREATED_NTF, b"")
    with pytest.raises(ControlProtocolError, match="incomplete"):
        watch.wait(0)


def test_a_module_without_events_is_said_to_be_one(kernel: Kernel) -> None:
    kernel.control.groups = {}
    with pytest.raises(ControlUnavailableError, match="too old to report events"):
        kernel.watch()
