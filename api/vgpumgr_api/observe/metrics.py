# SPDX-License-Identifier: Apache-2.0
"""The metrics for Prometheus. A replica is one process, so the numbers are its own, and each replica is scraped.

docs/operations.md lists every metric; a test compares the two.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from vgpumgr import __version__
from vgpumgr_api.db.database import CONNECTIONS, Database
from vgpumgr_api.db.trouble import Trouble
from vgpumgr_api.errors import Refusal
from vgpumgr_api.observe import statements
from vgpumgr_api.observe.exchange import Exchange
from vgpumgr_api.observe.figures import Figures, figures
from vgpumgr_api.overload.connections import Connections
from vgpumgr_api.overload.turns import Turns

FIGURES_S = 5.0
"""The maximum age of the fleet's figures, so that many scrapers cost the database no more than one."""

SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CLAIMS = {
    ("POST", "/v1/slices"): "claim",
    ("POST", "/v1/slices:batch"): "batch",
    ("POST", "/v1/reservations"): "reservation",
}
"""Requests for slices, and the label under which each is counted."""

_VERB = re.compile(r"\s*([A-Za-z]+)")
_VERBS = frozenset({"select", "insert", "update", "delete"})


class Metrics:
    """Belongs to one application. `watchers`: for each kind, the current number of clients that wait for news."""

    def __init__(
        self,
        database: Database,
        watchers: Mapping[str, Callable[[], int]],
        connections: Connections,
        turns: Turns,
    ) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "vgpumgr_requests", "Answered requests, by path template.", ["route", "method", "status"], registry=registry
        )
        self._seconds = Histogram(
            "vgpumgr_request_duration_seconds",
            "Time from a request's head to the end of its answer; in GET desired, agents wait on purpose.",
            ["route", "method"],
            buckets=SECONDS,
            registry=registry,
        )
        self._problems = Counter("vgpumgr_problems", "Answers with a problem, by code.", ["code"], registry=registry)
        self._claims = Counter(
            "vgpumgr_claims",
            "Slices that were asked for, by kind of request, result and problem code.",
            ["by", "result", "reason"],
            registry=registry,
        )
        self._statements = Counter(
            "vgpumgr_statements", "Statements sent to the database.", ["kind", "result"], registry=registry
        )
        self._statement_seconds = Histogram(
            "vgpumgr_statement_duration_seconds",
            "Time that the database took for a statement.",
            buckets=SECONDS,
            registry=registry,
        )
        Gauge("vgpumgr_build_info", "Always 1.", ["version"], registry=registry).labels(__version__).set(1)
        self.registry.register(_Process(database, watchers, connections, turns))
        self.registry.register(_Fleet(database))
        statements.watch(database.engine, self._statement)

    def answered(self, exchange: Exchange) -> None:
        """Counts a request."""
        self._requests.labels(exchange.route, exchange.method, str(exchange.status)).inc()
        self._seconds.labels(exchange.route, exchange.method).observe(exchange.seconds)
        if exchange.code:
            self._problems.labels(exchange.code).inc()
        by = CLAIMS.get((exchange.method, exchange.route))
        if by is not None:
            self._claims.labels(by, _result(exchange), exchange.code).inc(exchange.asked)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' format. Blocks on the database."""
        return generate_latest(self.registry)

    def _statement(self, statement: str, seconds: float, error: BaseException | None) -> None:
        found = _VERB.match(statement)
        verb = found[1].lower() if found else ""
        self._statements.labels(verb if verb in _VERBS else "other", "failed" if error else "done").inc()
        self._statement_seconds.observe(seconds)


def _result(exchange: Exchange) -> str:
    if exchange.status == 201:
        return "granted"
    if exchange.status < 400:
        return "validated"
    return "refused" if exchange.status < 500 else "failed"


class _Process(Collector):
    """Metrics of this process at the time of a scrape."""

    def __init__(
        self,
        database: Database,
        watchers: Mapping[str, Callable[[], int]],
        connections: Connections,
        turns: Turns,
    ) -> None:
        self._connections = connections
        self._pool = database.engine.pool
        self._clock = database.server_clock
        self._condition = database.condition
        self._watchers = watchers
        self._turns = turns

    def collect(self) -> Iterator[Metric]:
        connections = GaugeMetricFamily(
            "vgpumgr_database_connections", "Connections to the database.", labels=["state"]
        )
        connections.add_metric(["in_use"], self._pool.checkedout())  # type: ignore[attr-defined]  # of a QueuePool
        connections.add_metric(["idle"], self._pool.checkedin())  # type: ignore[attr-defined]
        yield connections
        trouble = GaugeMetricFamily(
            "vgpumgr_database_trouble",
            "Whether the database is unusable for this reason, as of the last transaction.",
            labels=["reason"],
        )
        for reason in Trouble:
            trouble.add_metric([reason.value], self._condition.trouble is reason)
        yield trouble
        yield GaugeMetricFamily("vgpumgr_connections", "Connections of clients.", value=len(self._connections))
        yield GaugeMetricFamily(
            "vgpumgr_connections_max", "Maximum number of clients' connections.", value=self._connections.total
        )
        yield CounterMetricFamily(
            "vgpumgr_connections_reset",
            "Connections that were closed without an answer.",
            value=self._connections.reset,
        )
        yield GaugeMetricFamily(
            "vgpumgr_database_connections_max", "Maximum connections to the database.", value=CONNECTIONS
        )
        watchers = GaugeMetricFamily("vgpumgr_watchers", "Clients that wait for news.", labels=["kind"])
        for kind, count in self._watchers.items():
            watchers.add_metric([kind], count())
        yield watchers
        turns = GaugeMetricFamily(
            "vgpumgr_requests_under_way", "Requests that are being processed or wait for their turn.", labels=["state"]
        )
        turns.add_metric(["working"], self._turns.working)
        turns.add_metric(["waiting"], self._turns.waiting)
        yield turns
        yield GaugeMetricFamily(
            "vgpumgr_clock_offset_seconds",
            "How far this machine's clock is ahead of the database's.",
            value=0 if self._clock is None else self._clock.offset.total_seconds(),
        )


class _Fleet(Collector):
    """Metrics of the fleet from the database; the same from every replica."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._guard = threading.Lock()
        self._known: Figures | None = None
        self._asked_s = float("-inf")

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        known = self._ask()
        yield GaugeMetricFamily("vgpumgr_database_up", "Whether the database answered.", value=known is not None)
        if known is not None:
            yield from _families(known)

    def _ask(self) -> Figures | None:
        with self._guard:
            if time.monotonic() - self._asked_s >= FIGURES_S:
                try:
                    self._known = self._database.run(figures, read_only=True)
                except (Refusal, SQLAlchemyError):
                    self._known = None
                self._asked_s = time.monotonic()
            return self._known


def _families(known: Figures) -> Iterator[Metric]:
    for name, what, label, values in (
        ("vgpumgr_hosts", "Hosts by state.", "state", known.hosts),
        ("vgpumgr_slices", "Slices by state.", "state", known.slices),
        ("vgpumgr_capacity", "Capacity of the GPUs that are present.", "resource", known.capacity),
        ("vgpumgr_granted", "Part of the GPUs' capacity that claims use.", "resource", known.granted),
        (
            "vgpumgr_usage_unbooked_seconds",
            "Engine time of hours that are missing from the ledger, in whole or in part.",
            "reason",
            known.unbooked_s,
        ),
    ):
        family = GaugeMetricFamily(name, what, labels=[label])
        for key, value in sorted(values.items()):
            family.add_metric([key], value)
        yield family
    numbers: tuple[tuple[str, str, float], ...] = (
        ("vgpumgr_hosts_silent", "Enrolled hosts that have not reported for 90 s.", known.hosts_silent),
        ("vgpumgr_hosts_unconfirmed", "Hosts that wait for confirm-epoch after a restore.", known.hosts_unconfirmed),
        (
            "vgpumgr_hosts_with_unknown_slices",
            "Hosts that have slices without a claim, or may start VMs with such slices.",
            known.hosts_unknown,
        ),
        (
            "vgpumgr_hosts_with_second_boot",
            "Hosts whose identity a second running machine uses.",
            known.hosts_second_boot,
        ),
        ("vgpumgr_slices_without_gpu", "Claims whose GPU is no longer in its host.", known.slices_without_gpu),
        ("vgpumgr_heartbeat_age_max_seconds", "Longest time since an enrolled host last reported.", known.heartbeat_s),
        ("vgpumgr_outbox_events", "Events that nobody has read yet.", known.outbox_events),
        ("vgpumgr_outbox_lag_seconds", "Age of the oldest event that nobody has read yet.", known.outbox_lag_s),
        (
            "vgpumgr_quota_tenants_omitted",
            "Tenants without quota metrics; those closest to a limit have them.",
            known.quotas_omitted,
        ),
    )
    for name, what, number in numbers:
        yield GaugeMetricFamily(name, what, value=number)
    used = GaugeMetricFamily("vgpumgr_quota_used", "Quota in use.", labels=["tenant", "resource"])
    limit = GaugeMetricFamily("vgpumgr_quota_limit", "Limit of the quota.", labels=["tenant", "resource"])
    for tenant, resources in known.quotas:
        for resource, (has, may) in resources.items():
            used.add_metric([tenant, resource], has)
            limit.add_metric([tenant, resource], may)
    yield from (used, limit)
