# SPDX-License-Identifier: Apache-2.0
"""Receives the kernel's events about slices between two looks at the host.

Events that an operator causes trigger a comparison at once: a slice or GPU came, went, or was taken from a VM. Events
that a guest can cause, such as faults and overruns, are only logged, so that a guest cannot keep the agent busy.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from vgpumgr.control.events import Watch, describe
from vgpumgr.control.model import Event, EventKind, Snapshot
from vgpumgr.control.netlink import Control
from vgpumgr.errors import VgpumgrError

log = logging.getLogger(__name__)

_WAIT_S = 1.0
_RETRY_S = 10.0
_COMPARED = {EventKind.CREATED, EventKind.REMOVED, EventKind.REVOKED, EventKind.LOST}
_LOGGED = {EventKind.REVOKED: logging.WARNING, EventKind.OVERRUN: logging.WARNING, EventKind.FAULT: logging.INFO}


class Events(Protocol):
    """The interface of `vgpumgr.control.events.Watch`."""

    def wait(self, timeout_s: float | None = None) -> Event | Snapshot | None: ...


@contextmanager
def _subscribed() -> Iterator[Events]:
    with Control() as control, Watch(control) as events:
        yield events


def watch(
    changed: Callable[[], None],
    stop: threading.Event,
    *,
    subscribe: Callable[[], AbstractContextManager[Events]] = _subscribed,
    retry_s: float = _RETRY_S,
) -> None:
    """Log events and call `changed` for those that matter, until `stop` is set.

    If the module is missing, or sends a message that the agent does not understand, subscribe again from time to time.
    The agent also polls everything, so no change is missed.
    """
    while not stop.is_set():
        try:
            with subscribe() as events:
                _follow(events, changed, stop)
        except (VgpumgrError, OSError) as error:
            log.debug("%s", error)
            stop.wait(retry_s)


def _follow(events: Events, changed: Callable[[], None], stop: threading.Event) -> None:
    while not stop.is_set():
        seen = events.wait(_WAIT_S)
        if isinstance(seen, Event):
            if seen.kind in _LOGGED:
                log.log(_LOGGED[seen.kind], "%s", describe(seen))
            if seen.kind in _COMPARED:
                changed()
        elif seen is not None:  # a snapshot comes first, and whenever events were lost
            changed()
