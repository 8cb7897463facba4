# SPDX-License-Identifier: Apache-2.0
"""What the agent asks of the API."""

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
"""How long a caller that libvirt waits for gives the API."""

AGAIN_S = (0.1,)
"""Of callers that have pauses of their own: a connection that was lost while nobody used it is no trouble yet."""


class ApiAwayError(Exception):
    """The API cannot be reached, or what answers is none. The text says what to do."""


class ApiRefusedError(Refused):
    """The API said no. `code`: of `vgpumgr.wire.problem`; `retry_after_s`: 0 unless it asks for a pause."""

    def __init__(self, code: str, reason: str, *, retry_after_s: float = 0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(code, reason)


class Api(Protocol):
    """The API's routes for hosts. Everything raises ApiAwayError or ApiRefusedError; threads may share it."""

    def enroll(self, one_time_token: str, enroll: Enroll) -> Enrolled:
        """Trade a one-time token for the host's own."""

    @property
    def encrypted(self) -> bool:
        """Whether a certificate can be shown to it: there is TLS."""

    def use(self, token: str | None, certificate_file: Path | None = None) -> None:
        """Speak with this token, or with the certificate in this file, from now on."""

    def heed_ca_file(self) -> None:
        """Trust those from now on who vouch for the API by the file's present content."""

    def renew(self, host: UUID, csr: str) -> HostCertificate:
        """Trade what we are known by for a certificate."""

    def desired(
        self, host: UUID, *, epoch: UUID | None = None, generation: int | None = None, wait_s: int = 0
    ) -> Desired | None:
        """Return the desired state once it is another one, None if it is not for `wait_s`. Quick without `wait_s`."""

    def bind(self, host: UUID, slice_id: UUID, vm_uuid: UUID) -> int:
        """Tie an unbound slice to a VM; return the claim's new generation. Quick."""

    def report(self, host: UUID, report: Report) -> Reported:
        """Say what this host has."""

    def heartbeat(self, host: UUID, beat: Heartbeat) -> HeartbeatTaken:
        """Say that this host lives, and has what it said in a report."""

    def meter(self, host: UUID, readings: Readings) -> Metered:
        """Say what was used here."""


class HttpApi:
    """An `Api` behind a URL."""

    def __init__(self, url: str, ca_file: str | None = None) -> None:
        """ApiAwayError for a URL or CA file that cannot be used, and for http:// beyond this machine."""
        self._url = url
        self._ca_file = ca_file
        self._shown: tuple[str | None, Path | None] = (None, None)
        self._trusted: tuple[int, ...] = ()
        self._connect()
        with _translated():
            refuse_clear_text(url)

    def enroll(self, one_time_token: str, enroll: Enroll) -> Enrolled:
        """Trade tokens, with a connection of its own."""
        with _translated(), Client(self._url, one_time_token, self._ca_file) as client:
            return client.enroll(enroll)

    @property
    def encrypted(self) -> bool:
        """Whether the URL says so."""
        return self._url.startswith("https:")

    def use(self, token: str | None, certificate_file: Path | None = None) -> None:
        """Open new connections; requests under way end on the old ones."""
        self._shown = (token, certificate_file)
        self._connect()

    def heed_ca_file(self) -> None:
        """Open new connections if the CA file is another one; if it cannot be used the old ones stay."""
        if self._ca_stamp() == self._trusted:
            return
        try:
            self._connect()
        except ApiAwayError as error:
            self._trusted = self._ca_stamp()
            log.warning("going on with the CA file of before: %s", error)
        else:
            log.info("took up the new %s", self._ca_file)

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
        """Ask for a certificate."""
        with _translated():
            return self._patient.renew_certificate(host, CertificateRequest(csr=csr))

    def desired(
        self, host: UUID, *, epoch: UUID | None = None, generation: int | None = None, wait_s: int = 0
    ) -> Desired | None:
        """Ask, patiently if there is something to wait for."""
        with _translated():
            if wait_s:
                return self._brief.desired(host, epoch=epoch, generation=generation, wait_s=wait_s)
            return self._quick.desired(host, epoch=epoch, generation=generation, wait_s=0)

    def bind(self, host: UUID, slice_id: UUID, vm_uuid: UUID) -> int:
        """Bind, once."""
        with _translated():
            return self._quick.bind(host, slice_id, Bind(vm_uuid=vm_uuid)).generation

    def report(self, host: UUID, report: Report) -> Reported:
        """Report."""
        with _translated():
            return self._brief.report(host, report)

    def heartbeat(self, host: UUID, beat: Heartbeat) -> HeartbeatTaken:
        """Say that it lives."""
        with _translated():
            return self._brief.heartbeat(host, beat)

    def meter(self, host: UUID, readings: Readings) -> Metered:
        """Say what was used."""
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
