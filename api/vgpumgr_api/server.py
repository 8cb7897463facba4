# SPDX-License-Identifier: Apache-2.0
"""The server process: sockets, TLS, uvicorn, and an orderly end.

On SIGTERM or SIGINT: no new connections, waiting agents and watchers are let go, requests under way get `STOP_S`
seconds, the database is closed, and `serve` returns. systemd hears READY=1 when the sockets take connections, and
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from vgpumgr.notify import notify
from vgpumgr.wire.problem import Code
from vgpumgr_api import agent_ca, listen
from vgpumgr_api.agent_ca import AgentCa, CaError
from vgpumgr_api.app import create_app
from vgpumgr_api.call import PEER
from vgpumgr_api.config import Config
from vgpumgr_api.db.database import Database
from vgpumgr_api.event_stream import ABORT
from vgpumgr_api.feed import Feed
from vgpumgr_api.housekeeping import Housekeeping
from vgpumgr_api.jobs import jobs
from vgpumgr_api.limits import Limits
from vgpumgr_api.listen import ListenError
from vgpumgr_api.oidc import Oidc
from vgpumgr_api.problems import ProblemResponse
from vgpumgr_api.watch import DesiredWatch

STOP_S = 10
NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME, which Python's ssl has no name for."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("vgpumgr_api.server")


def serve(config: Config) -> None:
    """Returns after a signal. Raises ListenError when it cannot or will not listen as configured."""
    ca = _agent_ca(config)
    context = tls_context(config)
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(contextlib.closing(Database(config.database)))
        sockets = listen.open_sockets(config)
        stack.callback(listen.close, config, sockets)
        limits = Limits(token_per_s=config.token_requests_per_s, tenant_per_s=config.tenant_requests_per_s)
        app = create_app(database, lease_s=config.lease_s, oidc=_oidc(config), agent_ca=ca, limits=limits)
        settings = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_S,
            timeout_notify=_watchdog_period_s(os.environ.get("WATCHDOG_USEC", "")),
            callback_notify=_alive,
            ssl_context_factory=None if context is None else lambda *_: context,
        )
        log_to_stderr()
        housekeeping = Housekeeping(database, jobs(config))
        waiting = (app.state.watch, app.state.operations_watch, app.state.feed)
        server = Server(settings, waiting, housekeeping, listen.describe(config, sockets))
        asyncio.run(server.serve(sockets))


def _agent_ca(config: Config) -> AgentCa | None:
    if config.agent_ca_certificate is None or config.agent_ca_key is None:
        return None
    try:
        return agent_ca.load(config.agent_ca_certificate, config.agent_ca_key, life_s=config.agent_certificate_life_s)
    except CaError as error:
        raise ListenError(str(error)) from None


def _oidc(config: Config) -> Oidc | None:
    if config.oidc is None:
        return None
    try:
        return Oidc(config.oidc)
    except OSError as error:
        raise ListenError(f"oidc.ca_file {config.oidc.ca_file}: {error.strerror or 'unusable'}") from None


def tls_context(config: Config) -> ssl.SSLContext | None:
    """None if no TLS is configured. Raises ListenError for files that cannot be used."""
    if config.tls_certificate is None or config.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A key with a passphrase must not make a service wait at a terminal.
        context.load_cert_chain(config.tls_certificate, config.tls_key, password=lambda: "")
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or "unusable"
        raise ListenError(f"tls_certificate {config.tls_certificate}, tls_key {config.tls_key}: {why}") from None
    if config.agent_ca_certificate is not None:
        _ask_for_certificates(context, config.agent_ca_certificate)
    return context


def _ask_for_certificates(context: ssl.SSLContext, ca_file: Path) -> None:
    """Of agents; people have none. Whether one has expired is said in a problem document rather than by TLS."""
    try:
        context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ListenError(f"agent_ca_certificate {ca_file}: {error.strerror or 'unusable'}") from None
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= NO_CHECK_TIME


def log_to_stderr() -> None:
    """One line per message; journald adds the time."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # Its lines at this level say the same as ours.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


class Server(uvicorn.Server):
    """Adds what systemd wants to know, lets all who wait go when it stops, and survives its own end."""

    def __init__(
        self, config: uvicorn.Config, waiting: Sequence[DesiredWatch | Feed], housekeeping: Housekeeping, where: str
    ) -> None:
        super().__init__(config)
        self._waiting = waiting
        self._housekeeping = housekeeping
        self._where = where

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._housekeeping.start()
        log.info("listening on %s", self._where)
        notify(ready=True, status=f"listening on {self._where}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("stopping")
        notify(stopping=True)
        for those in self._waiting:
            those.stop()
        await super().shutdown(sockets)
        await self._housekeeping.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own raises the signal again at the end, before the database is closed."""
        before = {each: signal.signal(each, self._signalled) for each in SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self.handle_exit(number, frame)


class Protocol(H11Protocol):
    """Answers what is not HTTP with a problem, too. Tells the application what a client's certificate says, and how to
    cut a connection.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self.app_state = {**self.app_state, ABORT: transport.abort}
        tls = transport.get_extra_info("ssl_object")
        shown = None if tls is None else tls.getpeercert(binary_form=True)
        if shown is not None:
            self.app_state = {**self.app_state, PEER: agent_ca.peer(shown)}

    def send_400_response(self, msg: str) -> None:
        response = ProblemResponse(Code.BODY_INVALID, f"not a request of HTTP/1.1: {msg}", request_id="-")
        headers = [*response.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=response.status_code, headers=headers, reason=b"Bad Request"),
            h11.Data(data=bytes(response.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _watchdog_period_s(watchdog_usec: str) -> int:
    """Whole seconds, as uvicorn counts them; a third of what systemd waits, so that one late sign is no death."""
    return max(int(watchdog_usec) // 3_000_000, 1) if watchdog_usec.isdecimal() else 30


async def _alive() -> None:
    notify(watchdog=True)
