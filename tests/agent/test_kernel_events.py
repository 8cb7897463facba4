# SPDX-License-Identifier: Apache-2.0
"""Kernel events in the agent: which of them cause a look at once, which are only logged, and which are ignored."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from vgpumgr_agent import kernel_events

from vgpumgr.control.model import Event, EventKind, Snapshot
from vgpumgr.errors import ControlUnavailableError, DumpInterruptedError

SLICE = "11111111-0000-4000-8000-000000000001"
SNAPSHOT = Snapshot(sequence=1, gpus=(), tenants=(), slices=())


class Told:
    """A subscription that delivers a script of events, then stops the watcher."""

    def __init__(self, *script: Event | Snapshot | Exception | None) -> None:
        self.script = list(script)
        self.stop = threading.Event()
        self.changed = 0
        self.subscriptions = 0

    @contextmanager
    def subscribe(self) -> Iterator["Told"]:
        self.subscriptions += 1
        yield self

    def wait(self, timeout_s: float | None = None) -> Event | Snapshot | None:
        assert timeout_s is not None, "would not notice that it shall stop"
        if not self.script:
            self.stop.set()
            return None
        seen = self.script.pop(0)
        if isinstance(seen, Exception):
            raise seen
        return seen

    def note(self) -> None:
        self.changed += 1

    def watched(self) -> "Told":
        kernel_events.watch(self.note, self.stop, subscribe=self.subscribe, retry_s=0)
        return self


def event(kind: EventKind, **details: object) -> Event:
    return Event(kind=kind, sequence=7, time_ns=1, count=1, gpu="0000:00:10.0", slice=SLICE, **details)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", list(EventKind))
def test_only_what_an_operator_did_or_what_was_lost_has_the_agent_look(kind: EventKind) -> None:
    """A guest can cause all other events as often as it wants."""
    looks = {EventKind.CREATED, EventKind.REMOVED, EventKind.REVOKED, EventKind.LOST}
    assert Told(event(kind)).watched().changed == (kind in looks)


def test_a_snapshot_has_the_agent_look_and_silence_does_not() -> None:
    assert Told(None, SNAPSHOT, None).watched().changed == 1


def test_what_was_taken_failed_or_ran_too_long_is_logged_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    details = {"pid": 4711, "comm": "qemu", "error": 3, "error_index": 9, "length_ns": 50, "limit_ns": 40}
    Told(*(event(kind, **details) for kind in EventKind)).watched()
    about = f"0000:00:10.0 slice {SLICE}"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"revoked: {about} from qemu, pid 4711"),
        ("INFO", f"fault: {about} error 3 at item 9"),
        ("WARNING", f"overrun: {about} 50 ns of 40 ns"),
    ]


@pytest.mark.parametrize("error", [ControlUnavailableError("gone"), DumpInterruptedError("busy"), OSError()])
def test_it_subscribes_again_when_the_module_has_gone_or_was_too_busy(error: Exception) -> None:
    told = Told(SNAPSHOT, error, SNAPSHOT).watched()
    assert (told.subscriptions, told.changed) == (2, 2)


def test_without_the_module_it_waits_and_can_be_stopped() -> None:
    stop = threading.Event()

    def none() -> Told:
        stop.set()
        raise ControlUnavailableError("vgpumgr.ko is not loaded")

    kernel_events.watch(lambda: None, stop, subscribe=none)  # type: ignore[arg-type]
    assert stop.is_set()
