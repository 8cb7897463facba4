# SPDX-License-Identifier: Apache-2.0
"""Sends reports to the API when something has changed, and heartbeats in between.

Changed counters alone do not count as a change. They are reported from time to time. A Reporter belongs to the agent;
`deliver` runs in a thread.
"""

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from vgpumgr.wire.fleet import Heartbeat, HeartbeatTaken, Report, Reported
from vgpumgr.wire.problem import Code
from vgpumgr_agent import faults
from vgpumgr_agent.api import Api, ApiAwayError, ApiRefusedError
from vgpumgr_agent.fence import heeding_fence
from vgpumgr_agent.pauses import Pauses
from vgpumgr_agent.store import Store

log = logging.getLogger(__name__)

PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 30.0
"""The API considers a host silent after 90 s."""

REPEAT_S = 600.0
"""How often an unchanged report is sent."""

_TIMES = ("wall_ns", "idle_ns")
"""These times always grow, even without work."""

_GROUP_COUNTERS = ("run_ns", "runs", "longest_run_ns", "throttled_ns", "switches")
_SLICE_COUNTERS = ("run_ns", "items")
_EXECUTOR_COUNTERS = ("memory_used_bytes",)


@dataclass(frozen=True, kw_only=True)
class Told:
    """The last report that the API has.

    `counters_s`: its age at which a report is sent if only counters have changed; `repeat_s`: its age at which a report
    is sent in any case. Both are randomised per host.
    """

    report: Report
    at_s: float
    counters_s: float
    repeat_s: float


class Reporter:
    """The last report and the next one."""

    def __init__(
        self,
        *,
        api: Api,
        store: Store,
        stop: threading.Event,
        counters_s: float,
        renew_soon: Callable[[int], None],
        pauses: Pauses | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`counters_s`: how often to report changing counters.

        `renew_soon`: called if the authority of our certificate is being replaced.
        """
        self._api = api
        self._store = store
        self._stop = stop
        self._counters_s = counters_s
        self._renew_soon = renew_soon
        self._pauses = pauses or Pauses(PAUSE_MIN_S, PAUSE_MAX_S)
        self._clock = clock
        self._guard = threading.Condition()
        self._waiting: Report | None = None
        self._told: Told | None = None
        self.counts: Counter[tuple[str, str]] = Counter()
        """Number of reports and heartbeats, by kind and result."""

    @property
    def waiting(self) -> Report | None:
        """Return the report that is not delivered yet, if there is one."""
        with self._guard:
            return self._waiting

    def report(self, report: Report) -> None:
        """Queue a report. It replaces one that is not delivered yet."""
        with self._guard:
            self._waiting = report
            self._guard.notify()

    def deliver(self) -> None:
        """Deliver until `stop` is set. Retry a failed report, unless a newer one is queued."""
        trouble = ""
        while not self._stop.is_set():
            with self._guard:
                if self._waiting is None:
                    self._guard.wait(1.0)
                report, self._waiting = self._waiting, None
            credentials = self._store.credentials
            if report is None or credentials is None or self._store.copied:
                continue
            before, trouble = trouble, ""
            try:
                with heeding_fence(self._store, credentials):
                    self.counts[self._tell(credentials.host_id, report), "delivered"] += 1
                self._pauses.over()
            except (ApiAwayError, ApiRefusedError, OSError) as error:
                self.counts["any", "failed"] += 1
                trouble = str(error)
                fenced = isinstance(error, ApiRefusedError) and error.code == Code.HOST_FENCED  # `follow` logs a fence
                if trouble != before and not fenced:
                    log.warning("report not delivered: %s", trouble)
                self._put_back(report)
                self._stop.wait(self._pauses.after(error))

    def _put_back(self, report: Report) -> None:
        with self._guard:
            self._waiting = self._waiting or report

    def _tell(self, host: UUID, report: Report) -> str:
        """Send a report or a heartbeat. Return which of them was sent."""
        if self._told is not None and not self._due(report, self._told) and self._holds(host, self._told.report):
            return "heartbeat"
        self._told = None
        reported = self._api.report(host, report)
        self._heed(reported)
        if reported.accepted:
            self._told = Told(
                report=report,
                at_s=self._clock(),
                counters_s=random.uniform(0.75, 1.25) * self._counters_s,
                repeat_s=random.uniform(0.75, 1.25) * REPEAT_S,
            )
        else:
            log.warning("the API has a newer report of this host: does another agent use its token?")
        faults.point("report.sent")
        return "report"

    def _due(self, report: Report, told: Told) -> bool:
        age_s = self._clock() - told.at_s
        if age_s >= told.repeat_s or _stated(report) != _stated(told.report):
            return True
        return age_s >= told.counters_s and _counted(report) != _counted(told.report)

    def _holds(self, host: UUID, told: Report) -> bool:
        """Send a heartbeat. Return whether the API accepts it: it has our last report and supports heartbeats."""
        try:
            beat = Heartbeat(boot_id=told.boot_id, agent_epoch=told.agent_epoch, seq=told.seq)
            taken = self._api.heartbeat(host, beat)
        except ApiRefusedError as error:
            if error.code == Code.ROUTE_UNKNOWN:  # the API is older than we are
                return False
            raise
        self._heed(taken)
        return taken.accepted

    def _heed(self, answer: Reported | HeartbeatTaken) -> None:
        if answer.renew_within_s is not None:
            self._renew_soon(answer.renew_within_s)


def _stated(report: Report) -> Report:
    """Return a report without its counters."""
    groups = [each.model_copy(update=dict.fromkeys((*_GROUP_COUNTERS, *_TIMES), 0)) for each in report.groups]
    slices = [
        each.model_copy(
            update={
                **dict.fromkeys(_SLICE_COUNTERS, 0),
                "executor": each.executor.model_copy(update=dict.fromkeys(_EXECUTOR_COUNTERS, 0)),
            }
        )
        for each in report.slices
    ]
    return report.model_copy(update={"seq": 0, "groups": groups, "slices": slices})


def _counted(report: Report) -> list[int]:
    return [
        *(getattr(each, name) for each in report.groups for name in _GROUP_COUNTERS),
        *(getattr(each, name) for each in report.slices for name in _SLICE_COUNTERS),
        *(getattr(each.executor, name) for each in report.slices for name in _EXECUTOR_COUNTERS),
    ]
