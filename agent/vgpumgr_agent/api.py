# SPDX-License-Identifier: Apache-2.0
"""The API's routes that the agent uses."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from uuid import UUID

from vgpumgr.client import Client
from vgpumgr.client.transport import refuse_clear_text
from vgpumgr.errors import ApiAnswerError, ApiError, ApiUnreachableError, SettingsError
from vgpumgr.wire.fleet import (
    Bind,
    CertificateRequest,
    Desired,
    Enroll,
    Enrolled,
    Heartbeat,
    HeartbeatTaken,
    HostCertificate,
    Report,
    Reported,
)
from vgpumgr.wire.usage import Metered, Readings
from vgpumgr_agent.refused import Refused

log = logging.getLogger(__name__)

QUICK_S = 3.0
"""Time limit of the API's answer for requests that libvirt waits for."""

AGAIN_S = (0.1,)
"""Pauses between retries, for callers that retry by themselves: retry once, in case an unused connection was lost."""


class ApiAwayError(Exception):
    """The API cannot be reached, or the answer is not the API's. The text says what to do."""


class ApiRefusedError(Refused):
    """The API refused. `code`: of `vgpumgr.wire.problem`; `retry_after_s`: the pause that the API asks for, or 0."""

    def __init__(self, code: str, reason: str, *, retry_after_s: float = 0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(code, reason)


class Api(Protocol):
    """The API's routes for hosts. Every method raises ApiAwayError or ApiRefusedError. Threads may share it."""

    def enroll(self, one_time_token: str, enroll: Enroll) -> Enrolled:
        """Exchange a one-time token for the host's own token."""

    @property
    def encrypted(self) -> bool:
        """Return whether the connection uses TLS, so that the agent can present a certificate."""

    def use(self, token: str | None, certificate_file: Path | None = None) -> None:
        """From now on, authenticate with this token, or with the certificate in this file."""

    def heed_ca_file(self) -> None:
        """From now on, trust the certificate authorities that the CA file names now."""

    def renew(self, host: UUID, csr: str) -> HostCertificate:
        """Exchange the present credentials for a certificate."""

    def desired(
        self, host: UUID, *, epoch: UUID | None = None, generation: int | None = None, wait_s: int = 0
    ) -> Desired | None:
        """Return the desired state once it has changed, or None if it does not change within `wait_s`.

        With `wait_s` 0 the time limit is QUICK_S.
        """

    def bind(self, host: UUID, slice_id: UUID, vm_uuid: UUID) -> int:
        """Bind an unbound slice to a VM. Return the claim's new generation. The time limit is QUICK_S."""

    def report(self, host: UUID, report: Report) -> Reported:
        """Report the state of this host."""

    def heartbeat(self, host: UUID, beat: Heartbeat) -> HeartbeatTaken:
        """Report that this host is alive and that its last report still holds."""

    def meter(self, host: UUID, readings: Readings) -> Metered:
        """Report this host's usage."""


class HttpApi:
    """An `Api` at a URL."""

    def __init__(self, url: str, ca_file: str | None = None) -> None:
        """Raises ApiAwayError for an unusable URL or CA file, and for http:// to another machine."""
        self._url = url
        self._ca_file = ca_file
        self._shown: tuple[str | None, Path | None] = (None, None)
        self._trusted: tuple[int, ...] = ()
        self._connect()
        with _translated():
            refuse_clear_text(url)

    def enroll(self, one_time_token: str, enroll: Enroll) -> Enrolled:
        """Exchange tokens over a separate connection."""
        with _translated(), Client(self._url, one_time_token, self._ca_file) as client:
            return client.enroll(enroll)

    @property
    def encrypted(self) -> bool:
        """Return whether the URL is https."""
        return self._url.startswith("https:")

    def use(self, token: str | None, certificate_file: Path | None = None) -> None:
        """Open new connections. Requests in progress finish on the old connections."""
        self._shown = (token, certificate_file)
        self._connect()

    def heed_ca_file(self) -> None:
        """Open new connections if the CA file has changed. If the file cannot be used, keep the old connections."""
        if self._ca_stamp() == self._trusted:
            return
        try:
            self._connect()
        except ApiAwayError as error:
            self._trusted = self._ca_stamp()
            log.warning("keeping the previous CA file: %s", error)
        else:
            log.info("loaded the new %s", self._ca_file)

    def _ca_stamp(self) -> tuple[int, ...]:
        with contextlib.suppress(OSError):
            if self._ca_file is not None:
                found = Path(self._ca_file).stat()
                return found.st_ino, found.st_size, found.st_mtime_ns
        return ()

    def _connect(self) -> None:
        token, certificate_file = self._shown
        shown = None if certificate_file is None else str(certificate_file)
        trusted = self._ca_stamp()
        with _translated():
            self._patient = Client(self._url, token, self._ca_file, certificate_file=shown)
            self._brief = Client(self._url, token, self._ca_file, pauses_s=AGAIN_S, certificate_file=shown)
            self._quick = Client(
                self._url, token, self._ca_file, timeout_s=QUICK_S, pauses_s=(), certificate_file=shown
            )
        self._trusted = trusted

    def renew(self, host: UUID, csr: str) -> HostCertificate:
        """Request a certificate."""
        with _translated():
            return self._patient.renew_certificate(host, CertificateRequest(csr=csr))

    def desired(
        self, host: UUID, *, epoch: UUID | None = None, generation: int | None = None, wait_s: int = 0
    ) -> Desired | None:
        """Request the desired state, with a long timeout only if `wait_s` is set."""
        with _translated():
            if wait_s:
                return self._brief.desired(host, epoch=epoch, generation=generation, wait_s=wait_s)
            return self._quick.desired(host, epoch=epoch, generation=generation, wait_s=0)

    def bind(self, host: UUID, slice_id: UUID, vm_uuid: UUID) -> int:
        """Bind without retries."""
        with _translated():
            return self._quick.bind(host, slice_id, Bind(vm_uuid=vm_uuid)).generation

    def report(self, host: UUID, report: Report) -> Reported:
        """Send a report."""
        with _translated():
            return self._brief.report(host, report)

    def heartbeat(self, host: UUID, beat: Heartbeat) -> HeartbeatTaken:
        """Send a heartbeat."""
        with _translated():
            return self._brief.heartbeat(host, beat)

    def meter(self, host: UUID, readings: Readings) -> Metered:
        """Send usage."""
        with _translated():
            return self._patient.meter(host, readings)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        raise ApiRefusedError(error.problem.code, error.problem.detail, retry_after_s=error.retry_after_s) from error
    except (ApiUnreachableError, ApiAnswerError, SettingsError) as error:
        raise ApiAwayError(str(error)) from error
