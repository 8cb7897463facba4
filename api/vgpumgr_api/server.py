# SPDX-License-Identifier: Apache-2.0
"""The server process: sockets, TLS, uvicorn, and an orderly shutdown.

After SIGTERM or SIGINT the process reports that it is not ready. After `stop_delay_s` it accepts no new connections and
ends the waits of clients. Running requests get `STOP_S` seconds. Then the database is closed and `serve` returns.
Threads that still hang are abandoned after another `ABANDON_S`. A second signal ends the process at once; the database
rolls back uncommitted transactions. The process sends READY=1 to systemd when the sockets accept connections, and
WATCHDOG=1 from the event loop.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from vgpumgr.notify import notify
from vgpumgr_api.app import create_app
from vgpumgr_api.auth import agent_ca
from vgpumgr_api.auth.agent_ca import AgentCa, CaError
from vgpumgr_api.auth.oidc import Oidc
from vgpumgr_api.background.housekeeping import Housekeeping
from vgpumgr_api.background.jobs import jobs
from vgpumgr_api.config import Config
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database
from vgpumgr_api.edge.lifecycle import Lifecycle
from vgpumgr_api.edge.transport import endpoint, listen, protocol
from vgpumgr_api.edge.transport.garbage import collect_seldom
from vgpumgr_api.edge.transport.listen import ListenError
from vgpumgr_api.edge.transport.protocol import Bounds
from vgpumgr_api.events.feed import Feed
from vgpumgr_api.events.watch import DesiredWatch
from vgpumgr_api.observe import logs, statements, tracing
from vgpumgr_api.overload.bodies import Bodies
from vgpumgr_api.overload.connections import Connections, Listener, room_for
from vgpumgr_api.overload.failed_logins import FailedLogins
from vgpumgr_api.overload.rates import Limits
from vgpumgr_api.overload.turns import Turns

SWITCH_S = 0.0005
"""How long a thread may keep the interpreter lock from others. A request releases it ten times or more, at each
exchange with the client or the database, and gets it back after this time if another thread is building a long answer.
"""

STOP_S = 10
ABANDON_S = 5
NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME, for which Python's ssl has no name."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("vgpumgr_api.server")


def serve(config: Config) -> None:
    """Serves until a signal. Raises ListenError if it cannot or may not listen as configured."""
    ca = _agent_ca(config)
    context = tls_context(config)
    metrics_token = endpoint.read_token(config.metrics_token_file)
    with contextlib.ExitStack() as stack:
        database = Database(config.database, step=schema.newest(), serving=True)
        stack.callback(database.close)
        allowed = config.connections
        connections = Connections(total=room_for(allowed.total), per_address=allowed.per_address)
        sockets = listen.open_sockets(config)
        stack.callback(listen.close, config.listen_host, sockets)
        metrics_sockets = listen.open_metrics_sockets(config)
        stack.callback(listen.close, config.metrics_host or "", metrics_sockets)
        traces = None if config.otlp_endpoint is None else tracing.exporting(config.otlp_endpoint)
        if traces is not None:
            stack.callback(traces.shutdown)
        limits = Limits(token_per_s=config.token_requests_per_s, tenant_per_s=config.tenant_requests_per_s)
        app = create_app(
            database,
            lease_s=config.lease_s,
            oidc=_oidc(config),
            agent_ca=ca,
            limits=limits,
            failed_logins=FailedLogins(config.failed_logins_per_s),
            turns=Turns(tenant=config.tenant_requests_at_once, token_waiting=config.token_requests_waiting),
            traces=traces,
            bodies=Bodies(allowed.bodies_bytes),
            body_s=allowed.body_s,
            connections=connections,
        )
        if config.slow_statement_ms:
            statements.watch(database.engine, statements.slow_log(config.slow_statement_ms))
        logs.install(as_json=config.log_format == "json")
        encrypted = context is not None
        server = Server(
            _settings(
                app,
                context,
                timeout_keep_alive=allowed.idle_s,
                timeout_notify=_watchdog_period_s(os.environ.get("WATCHDOG_USEC", "")),
                callback_notify=_alive,
            ),
            Bounds(settings=allowed, connections=connections, answered=app.state.metrics.answered),
            (app.state.watch, app.state.operations_watch, app.state.feed),
            Housekeeping(database, jobs(config)),
            app.state.lifecycle,
            listen.describe(config.listen_host, sockets, encrypted=encrypted),
            stop_delay_s=config.stop_delay_s,
        )
        metrics = None
        if config.metrics_host is not None:
            log.info("metrics on %s", listen.describe(config.metrics_host, metrics_sockets, encrypted=encrypted))
            metrics = endpoint.Server(
                _settings(
                    endpoint.application(app.state.metrics, metrics_token), context, limit_concurrency=endpoint.AT_ONCE
                ),
                Bounds(settings=allowed, connections=Connections(total=endpoint.CONNECTIONS, per_address=0)),
            )
        collect_seldom()
        sys.setswitchinterval(SWITCH_S)
        asyncio.run(_serve(server, sockets, metrics, metrics_sockets))


async def _serve(
    server: "Server",
    sockets: list[socket.socket],
    metrics: endpoint.Server | None,
    metrics_sockets: list[socket.socket],
) -> None:
    async with endpoint.serving(metrics, metrics_sockets):
        await server.serve(sockets)


def _settings(app: ASGIApp, context: ssl.SSLContext | None, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_S,
        ssl_context_factory=None if context is None else lambda *_: context,
        **more,
    )


def _agent_ca(config: Config) -> AgentCa | None:
    if config.agent_ca_certificate is None or config.agent_ca_key is None:
        return None
    try:
        return agent_ca.load(config.agent_ca_certificate, config.agent_ca_key, life_s=config.agent_certificate_life_s)
    except CaError as error:
        raise ListenError(str(error)) from None


def _oidc(config: Config) -> Oidc | None:
    try:
        return Oidc(*config.oidc) if config.oidc else None
    except OSError as error:
        files = ", ".join(str(each.ca_file) for each in config.oidc if each.ca_file is not None)
        raise ListenError(f"oidc.ca_file {files}: {error.strerror or 'unusable'}") from None


def tls_context(config: Config) -> ssl.SSLContext | None:
    """Returns the TLS context, None if no TLS is configured. Raises ListenError for files that cannot be used."""
    if config.tls_certificate is None or config.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # No agent resumes a session, and creating session tickets takes a sixth of each handshake.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        # A key with a passphrase must not make the service wait for input at a terminal.
        context.load_cert_chain(config.tls_certificate, config.tls_key, password=lambda: "")
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or "unusable"
        raise ListenError(f"tls_certificate {config.tls_certificate}, tls_key {config.tls_key}: {why}") from None
    if config.agent_ca_certificate is not None:
        _ask_for_certificates(context, config.agent_ca_certificate)
    return context


def _ask_for_certificates(context: ssl.SSLContext, ca_file: Path) -> None:
    """Asks clients for an optional certificate, which agents have. Expiry is reported as a problem, not by TLS."""
    try:
        context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ListenError(f"agent_ca_certificate {ca_file}: {error.strerror or 'unusable'}") from None
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= NO_CHECK_TIME


class Server(protocol.Server):
    """Adds systemd notifications, ends all waits on shutdown, and does not end the process by a signal."""

    def __init__(
        self,
        config: uvicorn.Config,
        bounds: Bounds,
        waiting: Sequence[DesiredWatch | Feed],
        housekeeping: Housekeeping,
        lifecycle: Lifecycle,
        where: str,
        *,
        stop_delay_s: int,
    ) -> None:
        super().__init__(config, bounds)
        self._waiting = waiting
        self._housekeeping = housekeeping
        self._lifecycle = lifecycle
        self._where = where
        self._stop_delay_s = stop_delay_s
        self._stop_at_s = float("inf")

    async def startup(self, sockets: list[Listener] | None = None) -> None:  # type: ignore[override]  # counted ones
        await super().startup(sockets)
        self._housekeeping.start()
        log.info("listening on %s", self._where)
        notify(ready=True, status=f"listening on {self._where}")

    async def on_tick(self, counter: int) -> bool:
        self.should_exit = self.should_exit or time.monotonic() >= self._stop_at_s
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("stopping")
        notify(stopping=True)
        _abandon_after(STOP_S + ABANDON_S)
        for those in self._waiting:
            those.stop()
        await super().shutdown(sockets)
        await self._housekeeping.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Replaces uvicorn's version, which raises the signal again at the end, before the database is closed."""
        before = {each: signal.signal(each, self._signalled) for each in SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        if self._lifecycle.stopping:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._lifecycle.stop()
        self._stop_at_s = time.monotonic() + self._stop_delay_s


def _abandon_after(seconds: float) -> None:
    """Ends the process if its threads do not: a thread that waits for a dead database cannot be stopped."""

    def abandon() -> None:
        log.error("abandoned what was under way: it did not end within %d s", seconds)
        logging.shutdown()
        os._exit(1)

    timer = threading.Timer(seconds, abandon)
    timer.daemon = True
    timer.start()


def _watchdog_period_s(watchdog_usec: str) -> int:
    """Returns the period of WATCHDOG=1: a third of systemd's timeout, so that one late signal does no harm.

    The period is in whole seconds, because uvicorn needs that.
    """
    return max(int(watchdog_usec) // 3_000_000, 1) if watchdog_usec.isdecimal() else 30


async def _alive() -> None:
    notify(watchdog=True)
