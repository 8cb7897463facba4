# SPDX-License-Identifier: Apache-2.0
"""Builds the application: routes, problems, envelope. Nothing is global, so a process may have several applications."""

import sys
from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig

from vgpumgr.wire.fleet import LEASE_S
from vgpumgr_api.auth.agent_ca import AgentCa
from vgpumgr_api.auth.oidc import Oidc
from vgpumgr_api.auth.remembered import Remembered
from vgpumgr_api.background import operating
from vgpumgr_api.db.database import Database, now
from vgpumgr_api.edge import problems
from vgpumgr_api.edge.envelope import Envelope
from vgpumgr_api.edge.lifecycle import Lifecycle
from vgpumgr_api.edge.methods import Methods
from vgpumgr_api.edge.openapi import document
from vgpumgr_api.edge.readiness import Readiness
from vgpumgr_api.edge.refused import Refused
from vgpumgr_api.events import outbox
from vgpumgr_api.events.feed import Feed
from vgpumgr_api.events.watch import NO_EPOCH, DesiredWatch, Generations
from vgpumgr_api.fleet import heartbeats, waiting
from vgpumgr_api.fleet.heartbeat_lots import Heartbeats
from vgpumgr_api.observe.metrics import Metrics
from vgpumgr_api.observe.tracing import Tracing
from vgpumgr_api.operations import operations
from vgpumgr_api.overload.bodies import Bodies
from vgpumgr_api.overload.connection_settings import ConnectionSettings
from vgpumgr_api.overload.connections import Connections
from vgpumgr_api.overload.failed_logins import FailedLogins
from vgpumgr_api.overload.rates import Limits
from vgpumgr_api.overload.turns import Turns
from vgpumgr_api.routes import ROUTERS

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

# FastAPI's own telemetry would duplicate ours, and would start sending once the environment names a collector.
NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "operation_spans": False}


def create_app(
    database: Database,
    *,
    lease_s: int = LEASE_S,
    oidc: Oidc | None = None,
    agent_ca: AgentCa | None = None,
    limits: Limits | None = None,
    failed_logins: FailedLogins | None = None,
    turns: Turns | None = None,
    traces: "TracerProvider | None" = None,
    bodies: Bodies | None = None,
    body_s: float = ConnectionSettings().body_s,
    connections: Connections | None = None,
) -> FastAPI:
    """Returns the application. The caller owns `database` and `traces` and closes them after the last request.

    `limits`, `failed_logins` and `turns`: if None, there are no limits per tenant, token or address. `bodies` counts
    the bytes of request bodies held in memory. `body_s`: how long a body may take to arrive. `connections`: the
    server's connections, for the metrics.
    """
    app = FastAPI(
        title=document.TITLE,
        version=document.VERSION,
        openapi_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
        telemetry=NO_TELEMETRY,
    )
    app.state.database = database
    app.state.lease_s = lease_s
    app.state.oidc = oidc
    app.state.agent_ca = agent_ca
    app.state.limits = limits or Limits()
    app.state.failed_logins = failed_logins or FailedLogins()
    app.state.turns = turns or Turns()
    app.state.watch = DesiredWatch(lambda: database.run(waiting.desired_generations, read_only=True))
    app.state.heartbeats = Heartbeats(lambda beats: database.run(lambda session: heartbeats.note(session, beats)))
    app.state.feed = Feed(lambda *asked: outbox.look(database, *asked))
    app.state.lifecycle = Lifecycle()
    app.state.operations_watch = DesiredWatch(lambda: _operations(database, app.state.lifecycle))
    app.state.readiness = Readiness()
    app.state.remembered = Remembered()
    app.state.refused = Refused(database.run)
    watchers = {
        "desired": lambda: app.state.watch.waiting,
        "operations": lambda: app.state.operations_watch.waiting,
        "events": lambda: len(app.state.feed),
    }
    # Not `or`: a `Connections` without a connection has the length 0 and would be false.
    counted = Connections(total=0, per_address=0) if connections is None else connections
    app.state.metrics = Metrics(database, watchers, counted, app.state.turns)
    problems.install(app)
    # The routes are added to one list, not by include_router: matching, the answer 405 and a test of all roles read it.
    for router in ROUTERS:
        app.router.routes.extend(router.routes)
    document.install(app)
    app.add_middleware(Methods)
    app.add_middleware(
        Envelope,
        lifecycle=app.state.lifecycle,
        bodies=bodies or Bodies(ConnectionSettings().bodies_bytes),
        body_s=body_s,
        observers=[app.state.metrics.answered],
        tracing=None if traces is None else Tracing(traces, database),
    )
    return app


def _operations(database: Database, lifecycle: Lifecycle) -> Generations:
    """Takes a step of each operation that is due, and returns the running ones. Stops early if the API is stopping."""
    advance = partial(operating.advance_next, due_by=database.run(now, read_only=True))
    while not lifecycle.stopping and database.run(advance):
        pass
    return NO_EPOCH, dict.fromkeys(database.run(operations.running, read_only=True), 0)


if __name__ == "__main__":
    # python -m vgpumgr_api.app > api/openapi.json; the database is never opened
    sys.stdout.write(document.text(create_app(Database("sqlite:///nowhere"))))
