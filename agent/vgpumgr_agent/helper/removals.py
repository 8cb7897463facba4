# SPDX-License-Identifier: Apache-2.0
"""Removes devices in threads, because the kernel may block the removal until a VM has closed the device."""

import logging
import threading
from collections.abc import Callable

from vgpumgr_agent.helper.protocol import Code
from vgpumgr_agent.refused import Refused

log = logging.getLogger(__name__)


class Removals:
    """One thread per slice that is being removed. Threads may share the object."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._running: dict[str, threading.Thread] = {}
        self._failed: dict[str, Exception] = {}

    def running(self, uuid: str) -> bool:
        """Return whether a slice is being removed."""
        with self._guard:
            return uuid in self._running

    def all(self) -> list[str]:
        """Return the slices that are being removed."""
        with self._guard:
            return sorted(self._running)

    def start(self, uuid: str, remove: Callable[[], None]) -> None:
        """Remove a slice in the background, unless a removal is running. Raises Refused if no thread can start."""
        with self._guard:
            if uuid in self._running:
                return
            thread = threading.Thread(target=self._run, args=(uuid, remove), name=f"remove {uuid}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise Refused(Code.HELPER_BUSY, f"no thread to remove slice {uuid}; try again") from error
            self._running[uuid] = thread  # the thread has not ended, because it needs the guard for that

    def wait(self, uuid: str, timeout_s: float) -> bool:
        """Return whether a removal ends in time. If it failed, raise its error, once."""
        with self._guard:
            thread = self._running.get(uuid)
        if thread is not None:
            thread.join(timeout_s)
        with self._guard:
            if uuid in self._running:
                return False
            failed = self._failed.pop(uuid, None)
        if failed is not None:
            raise failed
        return True

    def _run(self, uuid: str, remove: Callable[[], None]) -> None:
        failed: Exception | None = None
        try:
            remove()
        except Exception as error:
            log.warning("removing slice %s: %s", uuid, error)
            failed = error
        with self._guard:
            del self._running[uuid]
            if failed is None:
                self._failed.pop(uuid, None)
            else:
                self._failed[uuid] = failed
