# SPDX-License-Identifier: Apache-2.0
"""Certificates of hosts' agents. A host's row in `tokens` is its credential; certificates are short-lived proofs of it.

Renewal changes no row, so a restored database accepts hosts that have renewed since the backup. Ending the credential,
for example by a fence, ends every certificate issued for it.
"""

from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from vgpumgr.wire.fleet import CertificateRequest, HostCertificate
from vgpumgr.wire.problem import Code, Reason
from vgpumgr_api.actors import Actor, actor_of, hash_of, invalid, own_host, token_with
from vgpumgr_api.auth import credentials
from vgpumgr_api.auth.agent_ca import AgentCa, Peer, RequestError
from vgpumgr_api.auth.credentials import proof_of
from vgpumgr_api.db import models, records
from vgpumgr_api.db.database import TryAgain, now
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.db.statements import change
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import allowance, events

WORTH = 64
"""How many events of a host's allowance a certificate costs: hosts need few certificates, and signing is expensive."""


def authenticate(session: Session, peer: Peer, *, request_id: str = "", source: str = "") -> Actor:
    """Returns the actor with this certificate.

    Raises Refusal. A fenced host gets HOST_FENCED even if its certificate has expired.
    """
    token = token_with(session, peer.credential)
    if token is None or token.host_id != peer.host_id:
        raise invalid(
            session, proof_of(peer.credential), "this certificate was revoked or its host is unknown; enrol again"
        )
    if peer.expires_at <= now(session):
        raise Refusal(
            Code.AUTH_EXPIRED,
            "this host's certificate has expired; have the host re-enrolled",
            by=actor_of(token, request_id=request_id, source=source, certified=True),
        )
    return actor_of(token, request_id=request_id, source=source, certified=True)


def sign(session: Session, ca: AgentCa, host_id: UUID, credential: UUID, request: str | None) -> HostCertificate:
    """Issues a certificate. Raises Refusal(FIELD_INVALID), also if `request` is None."""
    if request is None:
        detail = "hosts get certificates here, not tokens; send a certificate signing request"
        reason = Reason(code="field.missing", detail=detail, field="$.csr")
        raise Refusal(Code.FIELD_INVALID, f"$.csr: {detail}", reasons=(reason,))
    try:
        made, ends = ca.sign(request, host_id=host_id, credential=credential, now=now(session))
    except RequestError as error:
        reason = Reason(code=Code.FIELD_INVALID, detail=str(error), field="$.csr")
        raise Refusal(Code.FIELD_INVALID, f"$.csr: {error}", reasons=(reason,)) from None
    return HostCertificate(certificate=made, expires_at=ends, renew_after_s=ca.life_s // 2)


def renew(
    session: Session, actor: Actor, host: str, request: CertificateRequest, *, ca: AgentCa | None
) -> HostCertificate:
    """Issues a certificate to a host's agent that shows its current certificate or its token.

    The first renewal by certificate proves that the agent has stored one, so the host's token becomes void.
    """
    row = own_host(session, actor, host)
    if ca is None:
        raise Refusal(Code.CA_ABSENT, "this API has no certificate authority for agents; keep using the token")
    reported = session.scalar(select(HostReport).where(HostReport.host_id == row.id).with_for_update())
    if reported is None:  # the host was deleted since the lookup
        raise TryAgain
    allowance.require(session, reported)
    allowance.spend(session, reported, WORTH)
    made = sign(session, ca, row.id, _own(actor), request.csr)
    if actor.certified:
        _void_token(session, row, _own(actor))
    events.record(session, actor, "host.certified", row.name, detail={"expires_at": made.expires_at.isoformat()})
    session.flush()
    return made


def _own(actor: Actor) -> UUID:
    if actor.token_id is None:  # every credential of a host is in `tokens`
        raise Refusal(Code.PERMISSION_DENIED, "this needs the credential of the host's agent")
    return actor.token_id


def _void_token(session: Session, host: models.Host, credential: UUID) -> None:
    token, proof = records.Token, hash_of(proof_of(credential))
    secret = session.scalar(select(token.secret_hash).where(token.id == credential, token.secret_hash != proof))
    if secret is None:
        return
    if change(
        session, update(token).where(token.id == credential, token.secret_hash == secret).values(secret_hash=proof)
    ):
        credentials.remember(session, secret, host.id, host.name)
