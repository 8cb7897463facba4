# SPDX-License-Identifier: Apache-2.0
"""The agent's persistent state: desired state, time of the API's last answer, credentials, epoch.

A Store owns the state directory, whose lock file keeps a second agent out. Threads may share it. State that cannot be
written takes effect at once, and is written when there is room. So a full disk delays neither a reduced quota nor a
fence.
"""

import fcntl
import hashlib
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from vgpumgr.wire.fleet import Desired, DesiredGroup
from vgpumgr_agent import documents, faults, placing
from vgpumgr_agent.documents import Clock, Kept, Stamp
from vgpumgr_agent.files import remove_durably, write_durably
from vgpumgr_agent.placing import Cards
from vgpumgr_agent.standing import Standing

log = logging.getLogger(__name__)

Model = TypeVar("Model", bound=BaseModel)

FRESH_S = 120.0
"""How long the last answer of the API counts as current. A reachable API answers every 30 s."""


_CREDENTIALS_BYTES = 16 << 10
"""More than the size of a certificate, its key and a token."""

_DESIRED, _CONTACT, _MACHINE = "desired.json", "contact.json", "machine.json"

COPIED = (
    "this machine has the state of another one, for example because its disk is a copy: it asks the API for nothing, "
    "and no VM starts with a slice; enrol it as a host of its own, or re-enrol this host if its hardware was replaced"
)


class StateError(Exception):
    """The state directory cannot be used. The text gives the reason and the remedy."""


class Certificate(BaseModel):
    """A certificate and its key, PEM. A new certificate is due `renew_after_s` after `obtained`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str
    certificate: str
    obtained: Stamp
    renew_after_s: float

    def is_due(self, now: Stamp) -> bool:
        """Return whether a new certificate is due. A certificate of unknown age is due.

        The wall clock does not matter.
        """
        age_s = self.obtained.age_s(now)
        return age_s is None or age_s >= self.renew_after_s


class Machine(BaseModel):
    """Which machine this state belongs to, see `Sysfs.machine`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    machine: str


class Credentials(BaseModel):
    """The host's certificate or token. `enrolled_with`: hash of the one-time token of its enrolment."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    host_id: UUID
    name: str
    token: str | None
    certificate: Certificate | None = None
    enrolled_with: str


def token_hash(token: str) -> str:
    """Return a hash that identifies a one-time token, so that the token itself is not kept."""
    return hashlib.sha256(token.encode()).hexdigest()


class Store:
    """The agent's state, in a directory that only the agent reads."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        """Open the state directory. Raises StateError if another agent runs, or files cannot be read."""
        self.clock = clock
        self._directory = directory
        self._guard = threading.RLock()
        self._updates = 0
        self._cards: Cards = {}
        self._fenced_at = 0
        self._unwritten: dict[str, str] = {}
        self._answered: Stamp | None = None
        self._here: str | None = None
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_file = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(f"{directory}: {error.strerror}; create it for the agent's user") from error
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock_file)
            raise StateError(f"another vgpumgr-agent uses {directory}; stop that first") from None
        try:
            self._kept = self._written = documents.load(directory / _DESIRED)
            self._contact = self._load(_CONTACT, Stamp)
            self._machine = self._load(_MACHINE, Machine)
            self.credentials = self._load("credentials.json", Credentials)
            self.agent_epoch = self._next_epoch()
        except OSError as error:
            self.close()
            path = error.filename or directory
            raise StateError(f"{path}: {error.strerror}; free space, or give the agent's user its files") from error
        except ValueError as error:
            self.close()
            reason = str(error).splitlines()[0]
            raise StateError(f"{directory} is damaged ({reason}); empty it and enrol this host again") from error

    def close(self) -> None:
        """Release the directory to another agent."""
        os.close(self._lock_file)

    def _load(self, name: str, kind: type[Model]) -> Model | None:
        try:
            return kind.model_validate_json((self._directory / name).read_bytes())
        except FileNotFoundError:
            return None

    def _next_epoch(self) -> int:
        path = self._directory / "agent_epoch"
        before = int(path.read_text()) if path.exists() else 0
        # Use the time in seconds, so that the epoch grows even if the directory was lost.
        epoch = max(before + 1, int(time.time()))
        write_durably(path, f"{epoch}\n")
        return epoch

    def save_credentials(self, credentials: Credentials) -> None:
        """Keep the host's credentials, readable by the agent's user only. Raises OSError."""
        write_durably(self._directory / "credentials.json", credentials.model_dump_json() + "\n")
        self.credentials = credentials

    # ---- which machine this is

    def on_machine(self, machine: str) -> None:
        """Record which machine this is, or "" if unknown. The state belongs to the first machine recorded."""
        with self._guard:
            self._here = machine
            if machine and (self._machine is None or _MACHINE in self._unwritten):
                self._machine = Machine(machine=machine) if self._machine is None else self._machine
                self._save(_MACHINE, self._machine)

    @property
    def placed(self) -> bool:
        """Return whether a look has recorded this machine, even as unknown."""
        return self._here is not None

    @property
    def copied(self) -> bool:
        """Return whether the kept state belongs to another machine."""
        with self._guard:
            return bool(self._here) and self._machine is not None and self._machine.machine != self._here

    def adopt_machine(self) -> None:
        """Assign the kept state to this machine, because it was enrolled again."""
        with self._guard:
            self._machine = Machine(machine=self._here) if self._here else None
            if self._machine is None:
                remove_durably(self._directory / _MACHINE)
            else:
                self._save(_MACHINE, self._machine)

    def certificate_file(self, certificate: Certificate) -> Path:
        """Return a file with key and certificate for TLS, written again each time. Raises OSError."""
        path = self._directory / "certificate.pem"
        write_durably(path, certificate.key + certificate.certificate)
        return path

    # ---- the disk

    @property
    def written(self) -> Kept | None:
        """The desired state on disk, which survives a restart. Only this may be reported as carried out."""
        with self._guard:
            return self._written

    @property
    def trouble(self) -> str:
        """Why some state is not on disk, or an empty text."""
        with self._guard:
            reasons = sorted(set(self._unwritten.values()))
        if not reasons:
            return ""
        return (
            f"cannot write {self._directory}: {', '.join(reasons)}; free space or mend the disk: shares are enforced "
            "from memory meanwhile, and confirmed later"
        )

    def flush(self) -> None:
        """Write the state that could not be written before."""
        with self._guard:
            if _DESIRED in self._unwritten and self._kept is not None:
                self._keep(self._kept)
            if _CONTACT in self._unwritten and self._contact is not None:
                self._heard(self._contact)

    def require_room(self) -> None:
        """Check that credentials could be stored, before any are requested. Raises OSError."""
        path = self._directory / "room"
        write_durably(path, "0" * _CREDENTIALS_BYTES)
        path.unlink()

    def _save(self, name: str, value: BaseModel) -> bool:
        """Write a file, or remember the error. Return whether the file is on disk."""
        try:
            write_durably(self._directory / name, value.model_dump_json() + "\n")
        except OSError as error:
            self._unwritten[name] = error.strerror or str(error)
            return False
        self._unwritten.pop(name, None)
        return True

    # ---- desired state

    @property
    def kept(self) -> Kept | None:
        """The desired state in effect, or None before the first."""
        with self._guard:
            return self._kept

    def see(self, cards: Cards) -> None:
        """Record where this host's cards are, and change the kept state to their present addresses."""
        with self._guard:
            self._cards = cards
            if self._kept is not None:
                self._kept = documents.placed(self._kept, cards)

    @property
    def cards(self) -> Cards:
        """The last seen cards, empty before the first look."""
        with self._guard:
            return self._cards

    @property
    def updates(self) -> int:
        """A counter of documents and fences; see `receive`."""
        with self._guard:
            return self._updates

    def receive(self, new: Desired, *, asked_at: int) -> bool:
        """Merge a document and write the result to disk. Return whether anything changed.

        `asked_at`: the value of `updates` when the document was requested. If other documents have arrived since, an
        older document is dropped. A document of another epoch is dropped, too, because the order of epochs is unknown.
        """
        with self._guard:
            before = self._kept if self.credentials is None else documents.as_host(self._kept, self.credentials.host_id)
            overtaken = (
                before is not None
                and asked_at != self._updates
                and (new.epoch != before.seen_epoch or new.generation < before.seen_generation)
            )
            if overtaken or asked_at < self._fenced_at:
                return False
            faults.point("desired.received")
            new = new.model_copy(
                update={
                    "groups": placing.placed(new.groups, self._cards),
                    "slices": placing.placed(new.slices, self._cards),
                }
            )
            after = documents.merge(before, new, self.clock.now())
            self._keep(after)
            faults.point("desired.stored")
            self._updates += 1
            self.touch()
            for doubt in after.doubts:
                if before is None or doubt not in before.doubts:
                    log.warning("%s", doubt)
            return after != before

    def fence(self, told: Credentials) -> None:
        """Give up every claim, because the API rejected these credentials with a fence of this host.

        This takes effect at once, even if the disk is full. It survives a restart once it is written. A fence of
        credentials that this host no longer has is ignored.
        """
        with self._guard:
            if self._kept is None or told != self.credentials:
                return
            kept = documents.fenced(self._kept)
            if kept is not self._kept:
                self._updates += 1
                self._fenced_at = self._updates
                self._keep(kept)

    @property
    def fenced(self) -> bool:
        """Return whether claims were given up after a fence. Only a complete document restores any of them."""
        kept = self.kept
        return kept is not None and any(claim.fenced for claim in kept.claims)

    def touch(self) -> None:
        """Record that the API has just answered."""
        with self._guard:
            self._answered = self.clock.now()
            self._heard(self._answered)

    @property
    def heard(self) -> bool:
        """Return whether the API has answered since this start."""
        with self._guard:
            return self._answered is not None

    @property
    def answered_s(self) -> float | None:
        """How long ago the API last answered, or None if it has not since this start."""
        with self._guard:
            return self._answered.age_s(self.clock.now()) if self._answered else None

    @property
    def contact_s(self) -> float | None:
        """How long ago the API last answered, even before this start. None: never; infinite: unknown.

        Leases count from that answer, except leases of claims that the API no longer names; see `Claim.unnamed_since`.
        """
        with self._guard:
            contact = self._contact
        if contact is None:
            return None
        age_s = contact.age_s(self.clock.now())
        return math.inf if age_s is None else age_s

    @property
    def certificate_s(self) -> float | None:
        """The age of the host's certificate, or None if there is none or its age is unknown."""
        credentials = self.credentials
        if credentials is None or credentials.certificate is None:
            return None
        return credentials.certificate.obtained.age_s(self.clock.now())

    def fresh(self) -> bool:
        """Return whether the kept state is trusted, and the API has recently confirmed it as the newest."""
        with self._guard:
            age_s = self.answered_s
            return self._kept is not None and self._kept.trusted and age_s is not None and age_s <= FRESH_S

    def age(self) -> None:
        """Save the age of leases from time to time, in case a boot sets the clock back."""
        with self._guard:
            now = self.clock.now()
            if self._contact is not None and (contact := self._contact.aged(now)) != self._contact:
                self._heard(contact)
            if self._kept is not None and (kept := documents.aged(self._kept, now)) is not self._kept:
                self._keep(kept)

    def _heard(self, contact: Stamp) -> None:
        self._contact = contact
        self._save(_CONTACT, contact)

    def bind(self, uuid: UUID, vm_uuid: UUID, generation: int) -> None:
        """Record that the API bound a slice to a VM."""
        with self._guard:
            if self._kept is None:
                return
            claims = [
                claim
                if claim.slice.id != uuid
                else claim.model_copy(
                    update={"slice": claim.slice.model_copy(update={"vm_uuid": vm_uuid, "generation": generation})}
                )
                for claim in self._kept.claims
            ]
            self._keep(self._kept.model_copy(update={"claims": claims}))

    def prove(self, kept: Kept, devices: Mapping[str, frozenset[UUID]]) -> None:
        """Prove claims by each GPU's `devices`, observed after `kept` was carried out: all other places are free."""
        with self._guard:
            if self._kept is kept and (after := documents.proven(kept, devices)) is not kept:
                self._keep(after)

    def _keep(self, kept: Kept) -> None:
        self._kept = kept
        if self._save(_DESIRED, kept):
            self._written = kept

    # ---- queries of the hook

    def standing(self, uuid: UUID) -> Standing:
        """Return what is known of a slice now."""
        with self._guard:
            kept, contact = self._kept, self._contact
        if kept is None:
            return Standing()
        claim = next((each for each in kept.claims if each.slice.id == uuid), None)
        if claim is None:
            return Standing(
                moved=next((each for each in kept.moved if each.id == uuid), None),
                arriving=next((each for each in kept.arriving if each.id == uuid), None),
                deleted=any(tombstone.id == uuid for tombstone in kept.tombstones),
            )
        since = claim.unnamed_since or contact
        age_s = since.age_s(self.clock.now()) if since and not claim.fenced else None
        return Standing(
            claim=claim.slice,
            fenced=claim.fenced,
            unproven=claim.unproven,
            doubt=kept.doubts[0] if claim.unproven and not kept.trusted else "",
            lease_left_s=0.0 if age_s is None else max(0.0, kept.lease_s - age_s),
        )

    def unnamed(self, gpu: str, devices: frozenset[UUID]) -> frozenset[UUID]:
        """See `documents.unnamed`. Without a document, all `devices` are unnamed."""
        kept = self.kept
        return documents.unnamed(kept, gpu, devices) if kept else devices

    def group(self, gpu: str, tenant: str) -> DesiredGroup | None:
        """Return a tenant's group on a GPU."""
        kept = self.kept
        groups = kept.groups if kept else ()
        return next((group for group in groups if (group.gpu, group.tenant) == (gpu, tenant)), None)
