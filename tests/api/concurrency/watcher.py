# SPDX-License-Identifier: Apache-2.0
"""A client that follows the events during a whole run and keeps them in the order in which it saw them."""

import threading
from typing import Any

from tests.api.concurrency.deployment import Deployment

PERIOD_S = 0.05


class Watcher(threading.Thread):
    """Asks for the events after the last one it saw, until `finish`."""

    def __init__(self, deployment: Deployment, name: str, *, token: str | None = None, page_size: int = 50) -> None:
        super().__init__(name=f"watcher-{name}", daemon=True)
        self.seen: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        self._caller = deployment.caller(token)
        self._page_size = page_size
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopping.wait(PERIOD_S):
                self._look()
            self._look()
        except Exception as error:
            self.complaints.append(repr(error))

    def finish(self) -> list[int]:
        """Reads the remaining events and returns all numbers in the order in which they came."""
        self._stopping.set()
        self.join()
        return [event["seq"] for event in self.seen]

    def _look(self) -> None:
        more = True
        while more:
            after = self.seen[-1]["seq"] if self.seen else 0
            reply = self._caller.ask("GET", f"/v1/events?after={after}&page_size={self._page_size}")
            assert reply.status == 200, reply.body
            self.seen += reply.body["items"]
            more = reply.body["next_page_token"] != ""
