# SPDX-License-Identifier: Apache-2.0
"""The agent's side of the API: enrolment, desired state, binding, usage. Any of these may fail for days.

A ControlPlane belongs to the agent. `follow` and `tell_usage` each run in a thread. `reporter` sends the reports.
"""

import logging
import random
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from vgpumgr import __version__
from vgpumgr.wire.fleet import Enroll, HostCertificate
from vgpumgr.wire.problem import Code
from vgpumgr_agent import documents, faults
from vgpumgr_agent.api import Api, ApiAwayError, ApiRefusedError
from vgpumgr_agent.fence import heeding_fence
from vgpumgr_agent.identity import new_key
from vgpumgr_agent.meter_store import Meter
from vgpumgr_agent.pauses import Pauses
from vgpumgr_agent.store import COPIED, Certificate, Credentials, Store, token_hash

if TYPE_CHECKING:
    from vgpumgr_agent.documents import Stamp

log = logging.getLogger(__name__)

WAIT_S = 30
PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 60.0
_DOUBTFUL_PAUSE_S = 15.0
_RENEW_PAUSE_S = 600.0
_USAGE_PAUSE_S = 60.0


class ControlPlane:
    """This host's view of the API."""

    def __init__(
        self,
        *,
        api: Api,
        store: Store,
        meter: Meter,
        token_file: Path,
        boot_id: UUID,
        wake: Callable[[], None],
        stop: threading.Event,
        pauses: Pauses | None = None,
        doubtful_pause_s: float = _DOUBTFUL_PAUSE_S,
        usage_pause_s: float = _USAGE_PAUSE_S,
    ) -> None:
        self._api = api
        self._store = store
        self._meter = meter
        self._token_file = token_file
        self._boot_id = boot_id
        self._wake = wake
        self._stop = stop
        self._pauses = pauses or Pauses(PAUSE_MIN_S, PAUSE_MAX_S)
        self._doubtful_pause_s = doubtful_pause_s
        self._usage_pause_s = usage_pause_s
        self.trouble = "not asked yet"
        self._renew_tried: Stamp | None = None
        self._renew_trouble = ""
        self._renew_asked: tuple[Stamp, float] | None = None
        self._unseen = False  # the API does not see our certificate, and the token is being tried
        if store.credentials is not None:
            self._use(store.credentials)

    # ---- desired state

    def follow(self) -> None:
        """Enrol, then keep the desired state up to date, until `stop` is set."""
        while not self._stop.is_set():
            try:
                self._step()
                self._pauses.over()
                self._said("")
            except (ApiAwayError, ApiRefusedError, OSError) as error:
                self._said(_said_of(error))
                self._stop.wait(self._pauses.after(error))

    def _step(self) -> None:
        self._store.age()
        self._api.heed_ca_file()
        if self._store.copied:
            if self._store.credentials is not None:
                self._enroll_again(self._store.credentials)
            if self._store.copied:
                raise ApiAwayError(COPIED)
        credentials = self._renewed(self._store.credentials or self._enroll())
        kept = self._store.kept
        asked_at = self._store.updates
        doubtful = kept is not None and not kept.trusted
        try:
            with heeding_fence(self._store, credentials):
                if kept is None or doubtful or self._store.fenced or kept.host_id != credentials.host_id:
                    new = self._api.desired(credentials.host_id, wait_s=0)
                else:
                    new = self._api.desired(
                        credentials.host_id, epoch=kept.seen_epoch, generation=kept.seen_generation, wait_s=WAIT_S
                    )
        except ApiAwayError:
            # Our certificate's authority may have expired while we were off. TLS does not distinguish this from other
            # errors, so try to enrol again after any of them.
            with suppress(ApiAwayError):
                self._enroll_again(credentials)
            raise
        except ApiRefusedError as error:
            if error.code in (Code.AUTH_INVALID, Code.AUTH_EXPIRED):
                if not self._unseen:
                    self._enroll_again(credentials)
                else:
                    self._keep_one(credentials.model_copy(update={"token": None}))
            elif error.code == Code.HOST_FENCED:
                with suppress(ApiAwayError):
                    self._enroll_again(credentials)
            elif error.code == Code.AUTH_REQUIRED and credentials.certificate is not None:
                if credentials.token:
                    self._try_token(credentials.token)
                else:
                    with suppress(ApiAwayError):
                        self._enroll_again(credentials)
            raise
        if self._unseen:
            self._keep_one(credentials.model_copy(update={"certificate": None}))
        if new is None:
            self._store.touch()
        elif self._store.receive(new, asked_at=asked_at):
            self._wake()
        if doubtful:  # there is nothing new to wait for: the document is known but not trusted yet
            self._stop.wait(self._doubtful_pause_s)

    def refresh(self) -> None:
        """Fetch the desired state now. Raises ApiAwayError, ApiRefusedError."""
        credentials = self._require()
        asked_at = self._store.updates
        with heeding_fence(self._store, credentials):
            new = self._api.desired(credentials.host_id)
        if new is not None and self._store.receive(new, asked_at=asked_at):
            self._wake()

    def bind(self, uuid: UUID, vm_uuid: UUID) -> None:
        """Bind a slice and remember the binding. Raises ApiAwayError, ApiRefusedError."""
        credentials = self._require()
        with heeding_fence(self._store, credentials):
            generation = self._api.bind(credentials.host_id, uuid, vm_uuid)
        faults.point("bind.answered")
        self._store.bind(uuid, vm_uuid, generation)
        faults.point("bind.stored")

    # ---- enrolment

    def _require(self) -> Credentials:
        if self._store.credentials is None:
            raise ApiAwayError("this host is not enrolled")
        if self._store.copied:
            raise ApiAwayError(COPIED)
        return self._store.credentials

    def _enroll(self) -> Credentials:
        token = self._one_time_token()
        self._store.require_room()  # the token can be used only once
        key, csr = new_key() if self._api.encrypted else ("", None)
        kept = self._store.kept
        claims_of = kept.host_id if kept is not None and documents.startable(kept) else None
        enrolled = self._api.enroll(
            token, Enroll(agent_version=__version__, boot_id=self._boot_id, csr=csr, claims_of=claims_of)
        )
        faults.point("enroll.answered")
        credentials = Credentials(
            host_id=enrolled.host_id,
            name=enrolled.name,
            token=enrolled.token,
            certificate=None if enrolled.certificate is None else self._dated(key, enrolled.certificate),
            enrolled_with=token_hash(token),
        )
        self._store.adopt_machine()
        self._store.save_credentials(credentials)
        faults.point("enroll.stored")
        self._unseen = False
        self._use(credentials)
        log.info("enrolled as host %s (%s)", credentials.name, credentials.host_id)
        return credentials

    def _use(self, credentials: Credentials) -> None:
        if credentials.certificate is None:
            self._api.use(credentials.token)
        else:
            self._api.use(None, self._store.certificate_file(credentials.certificate))

    def _renewed(self, credentials: Credentials) -> Credentials:
        """Return the credentials to use: a new certificate if one is due, or if there is only a token so far.

        A certificate is due early enough that half of its life is left for retries. So nothing waits for the renewal,
        and a failure does no harm. While the token is being tried, nothing is renewed, because the API has not said yet
        whether the token or the certificate is valid.
        """
        if self._unseen:
            return credentials
        now = self._store.clock.now()
        had = credentials.certificate
        tried_s = None if self._renew_tried is None else self._renew_tried.age_s(now)
        if not self._api.encrypted or (had is not None and not had.is_due(now) and not self._is_asked_for(now)):
            return credentials
        if tried_s is not None and tried_s < _RENEW_PAUSE_S:
            return credentials
        self._renew_tried = now
        key, csr = new_key()
        try:
            self._store.require_room()
            made = self._api.renew(credentials.host_id, csr)
        except (ApiAwayError, ApiRefusedError, OSError) as error:
            if str(error) != self._renew_trouble:
                absent = isinstance(error, ApiRefusedError) and error.code in (Code.CA_ABSENT, Code.ROUTE_UNKNOWN)
                log.log(logging.INFO if had is None and absent else logging.WARNING, "no new certificate: %s", error)
            self._renew_trouble = str(error)
            return credentials
        faults.point("renew.answered")
        # The token stays valid until a certificate has been renewed, so keep it beside the first certificate, which may
        # be lost.
        token = credentials.token if had is None else None
        renewed = credentials.model_copy(update={"certificate": self._dated(key, made), "token": token})
        self._store.save_credentials(renewed)
        faults.point("renew.stored")
        self._use(renewed)
        self._renew_tried, self._renew_trouble, self._renew_asked = None, "", None
        log.info("new certificate, until %s", made.expires_at.isoformat())
        return renewed

    def _try_token(self, token: str) -> None:
        """Try the token because the API does not see our certificate.

        Either a proxy stands in between, or another machine of the API has no certificate authority.
        """
        log.warning("the API does not see the certificate; trying the token")
        self._unseen = True
        self._api.use(token)
        self._renew_tried = self._store.clock.now()

    def _keep_one(self, good: Credentials) -> None:
        """Keep only the credentials that the API has accepted: the token or the certificate."""
        self._store.save_credentials(good)
        self._unseen = False
        self._use(good)

    def renew_soon(self, within_s: int) -> None:
        """Request a new certificate at a random time within `within_s`, so that not all hosts do it at once."""
        if self._renew_asked is None:
            self._renew_asked = (self._store.clock.now(), random.uniform(0, within_s))

    def _is_asked_for(self, now: "Stamp") -> bool:
        if self._renew_asked is None:
            return False
        asked, after_s = self._renew_asked
        age_s = asked.age_s(now)
        return age_s is None or age_s >= after_s

    def _dated(self, key: str, made: HostCertificate) -> Certificate:
        return Certificate(
            key=key,
            certificate=made.certificate,
            obtained=self._store.clock.now(),
            renew_after_s=made.renew_after_s * random.uniform(0.8, 1.0),  # spreads hosts that were set up together
        )

    def _enroll_again(self, old: Credentials) -> None:
        """If the token file has a new one-time token, enrol with it to replace rejected credentials."""
        if token_hash(self._one_time_token()) != old.enrolled_with:
            self._enroll()

    def _one_time_token(self) -> str:
        try:
            token = self._token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ApiAwayError(f"no enrolment token: {error}; write this host's token there") from error
        if not token:
            raise ApiAwayError(f"{self._token_file} is empty; put this host's enrolment token there")
        return token

    # ---- usage

    def tell_usage(self) -> None:
        """Send usage to the API about once a minute, until `stop` is set. Unsent usage stays on disk."""
        trouble = ""
        while not self._stop.wait(random.uniform(self._usage_pause_s / 2, self._usage_pause_s)):
            before, trouble = trouble, ""
            try:
                self.deliver_usage()
            except (ApiAwayError, ApiRefusedError, OSError, sqlite3.Error) as error:
                trouble = str(error)
                fenced = isinstance(error, ApiRefusedError) and error.code == Code.HOST_FENCED
                if trouble != before and not fenced:
                    log.warning("usage not delivered, it is kept: %s", trouble)

    def deliver_usage(self) -> None:
        """Send all usage. Raises ApiAwayError, ApiRefusedError, OSError, sqlite3.Error."""
        credentials = self._store.credentials
        while credentials is not None and not self._store.copied and not self._stop.is_set():
            readings = self._meter.pending()
            with heeding_fence(self._store, credentials):
                answer = self._api.meter(credentials.host_id, readings)
            self._meter.acknowledged(readings, answer)
            nothing_came_of_it = answer.revision == readings.after
            if answer.restart or answer.revision == readings.newest or nothing_came_of_it:
                return

    # ---- trouble

    def _said(self, trouble: str) -> None:
        """Log once why the API is away, and once that it is back."""
        if trouble == self.trouble:
            return
        if trouble:
            log.warning("API: %s", trouble)
        else:
            log.info("API: reachable")
        self.trouble = trouble


def _said_of(error: Exception) -> str:
    """Return the text to log. A full disk is reported as this host's trouble, not the API's."""
    if isinstance(error, OSError):
        return f"this host cannot write {error.filename or 'its state'}: {error.strerror or error}; free space"
    return str(error)
