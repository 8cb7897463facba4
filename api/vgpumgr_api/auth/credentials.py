# SPDX-License-Identifier: Apache-2.0
"""Ends hosts' credentials. Their hashes are kept, so that a client that shows an ended one learns of a fence.

All former credentials are kept, because a fenced machine may come back with a credential that was replaced or revoked
earlier.
"""

from uuid import UUID

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from vgpumgr_api.actors import hash_of
from vgpumgr_api.db import records
from vgpumgr_api.db.models import Host
from vgpumgr_api.db.statements import change


def revoke(session: Session, host_id: UUID, name: str) -> None:
    """Voids a host's own credential. The caller holds the host's lock."""
    token = records.Token
    for credential, secret in session.execute(select(token.id, token.secret_hash).where(token.host_id == host_id)):
        remember_all(session, credential, secret, host_id, name)
    change(session, delete(token).where(token.host_id == host_id))


def revoke_enrolment(session: Session, host: Host) -> None:
    """Voids a one-time token that was not used yet. The caller holds the host's lock."""
    if host.enroll_hash is not None:
        remember(session, host.enroll_hash, host.id, host.name)
        host.enroll_hash = host.enroll_expires_at = None


def mark_fenced(session: Session, host_id: UUID) -> None:
    """Makes every former credential of this host answer HOST_FENCED."""
    session.flush()
    former = records.FormerSecret
    change(session, update(former).where(former.host_id == host_id).values(fenced=True))


def forget(session: Session, host_id: UUID) -> None:
    """Forgets the former credentials of a host that is removed, except those marked as fenced."""
    former = records.FormerSecret
    change(session, delete(former).where(former.host_id == host_id, ~former.fenced))


def proof_of(credential: UUID) -> str:
    """Returns the string hashed as the secret of a credential with certificates only; no bearer token has this form."""
    return f"certificate:{credential}"


def remember_all(session: Session, credential: UUID, secret_hash: str, host_id: UUID, name: str) -> None:
    """Keeps the hash of a credential's token, if it has one, and the hash for its certificates; both may exist."""
    for each in {secret_hash, hash_of(proof_of(credential))}:
        remember(session, each, host_id, name)


def remember(session: Session, secret_hash: str, host_id: UUID, name: str) -> None:
    """Keeps the hash of a host's former credential, to distinguish it from one that never existed."""
    session.add(records.FormerSecret(secret_hash=secret_hash, host_id=host_id, host=name, fenced=False))
