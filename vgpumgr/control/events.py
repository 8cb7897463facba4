# SPDX-License-Identifier: Apache-2.0
"""Events of this host's GPUs, as the kernel reports them.

A Watch gives a snapshot first, then events. Whenever the kernel could not report something (a slow reader, a storm),
the Watch gives a new snapshot. So the reader's knowledge is never older than the last item from the Watch. An event may
be older than the snapshot before it. An event therefore says only that something happened; read the object's state.
"""

import errno
import select
import socket
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from types import TracebackType

from vgpumgr.control import family, protocol, wire
from vgpumgr.control.model import Event, EventKind, Snapshot
from vgpumgr.control.netlink import Control, decode_values
from vgpumgr.control.protocol import Command
from vgpumgr.errors import ControlProtocolError, ControlUnavailableError

_NETLINK_GENERIC = 16
_SOL_NETLINK = 270
_ADD_MEMBERSHIP = 1
_SO_RCVBUFFORCE = 33
_RECEIVE_BYTES = 64 << 10
_BUFFER_BYTES = 1 << 20

_DETAILS = {
    EventKind.REVOKED: "from {comm}, pid {pid}",
    EventKind.FAULT: "error {error} at item {error_index}",
    EventKind.OVERRUN: "{length_ns} ns of {limit_ns} ns",
}


def describe(event: Event) -> str:
    """Return an event as text on one line, without its number. Names in it are not sanitized."""
    words = [f"{event.kind}:", event.gpu]
    words += [f"{name} {value}" for name, value in (("tenant", event.tenant), ("slice", event.slice)) if value]
    words += [f"{event.count} times"] if event.count > 1 else []
    words += [_DETAILS[event.kind].format(**asdict(event))] if event.kind in _DETAILS else []
    return " ".join(words)


class Watch:
    """A subscription to events; a context manager and an endless iterator. For use by one thread."""

    def __init__(self, control: Control, *, buffer_bytes: int = _BUFFER_BYTES) -> None:
        """Subscribe. `control` reads the snapshots. `buffer_bytes`: size of the buffer for unread events.

        ControlUnavailableError if the module is not loaded, or is too old to report events.
        """
        self._control = control
        self._stale = True
        self._known = 0
        self._received: deque[Event] = deque()
        found = control.find_family()
        self._family = found.id
        if protocol.EVENTS_GROUP not in found.groups:
            raise ControlUnavailableError("vgpumgr.ko is too old to report events")
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_GENERIC)
        try:
            self._socket.setblocking(False)
            self._set_buffer(buffer_bytes)
            self._socket.bind((0, 0))
            for group in (family.CONTROL_FAMILY, found.groups[protocol.EVENTS_GROUP]):
                self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        except BaseException:
            self._socket.close()
            raise

    def _set_buffer(self, buffer_bytes: int) -> None:
        """Set the buffer size. Only CAP_NET_ADMIN can exceed the system's limit."""
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)

    def close(self) -> None:
        """Unsubscribe."""
        self._socket.close()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """The file descriptor for select. It is readable when `wait` has something to process."""
        return self._socket.fileno()

    def __iter__(self) -> Iterator[Event | Snapshot]:
        while (seen := self.wait()) is not None:
            yield seen

    def wait(self, timeout_s: float | None = None) -> Event | Snapshot | None:
        """Return the next item, or None after `timeout_s` without one. A `timeout_s` of None waits without limit.

        ControlUnavailableError once the module is unloaded; then a new Control and a new Watch are needed.
        DumpInterruptedError if no snapshot could be taken; call again.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self._stale:
                # the kernel reports a full buffer only once until everything has been read
                while self._receive(time.monotonic()):
                    pass
                return self._snapshot()
            if self._received:
                first = self._received[0]
                if first.sequence <= self._known + 1:
                    self._known = max(self._known, first.sequence)
                    return self._received.popleft()
                self._known = first.sequence - 1  # missing events are part of the snapshot, or of a GPU that is gone
                self._stale = True
            elif not self._receive(deadline):
                return None

    def _snapshot(self) -> Snapshot:
        gpus = self._control.gpus()  # read first, so that `sequence` is not newer than the rest
        snapshot = Snapshot(
            sequence=max((gpu.event_seq for gpu in gpus), default=0),
            gpus=tuple(gpus),
            tenants=tuple(self._control.tenants()),
            slices=tuple(self._control.slices()),
        )
        self._stale = False
        self._known = max(self._known, snapshot.sequence)
        return snapshot

    def _receive(self, deadline: float | None) -> bool:
        """Receive one datagram; return False if none came in time."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        if not poller.poll(None if deadline is None else max(0, deadline - time.monotonic()) * 1000):
            return False
        try:
            datagram, _, received, _ = self._socket.recvmsg(_RECEIVE_BYTES)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            self._stale = True
            return True
        if received & socket.MSG_TRUNC:
            raise ControlProtocolError("an event was longer than the receive buffer")
        for message in wire.decode_messages(datagram):
            if message.type == self._family:
                self._take(*wire.decode_generic(message))
            elif message.type == family.CONTROL_FAMILY:
                self._check_family(*wire.decode_generic(message))
        return True

    def _take(self, command: int, attributes: bytes) -> None:
        values = decode_values(protocol.EVENT, attributes)
        known = command in Command._value2member_map_
        name = Command(command).name.removesuffix("_NTF").lower() if known else "other"
        try:
            event = Event(
                kind=EventKind(name),
                sequence=values.pop("seq"),
                time_ns=values.pop("time_ns"),
                count=values.pop("count"),
                gpu=values.pop("gpu"),
                **values,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ControlProtocolError(f"an incomplete event: {error}") from error
        self._received.append(event)

    def _check_family(self, command: int, attributes: bytes) -> None:
        if command == family.DELETE_FAMILY and family.decode_family(attributes).id == self._family:
            raise ControlUnavailableError("the netlink family is gone: vgpumgr.ko was unloaded")
