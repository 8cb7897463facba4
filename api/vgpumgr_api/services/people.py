# SPDX-License-Identifier: Apache-2.0
"""Who a person is here that an OIDC issuer vouches for."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code
from vgpumgr_api.db import models
from vgpumgr_api.errors import Refusal
from vgpumgr_api.oidc import Person
from vgpumgr_api.services.actors import Actor, hash_of
from vgpumgr_api.services.text import printable


def recognise(session: Session, person: Person, *, request_id: str = "", source: str = "") -> Actor:
    """Returns who asks. Raises Refusal(PERMISSION_DENIED) if the tenant that the token names is not here."""
    tenant_id = None
    if person.tenant is not None:
        tenant_id = session.scalar(select(models.Tenant.id).where(models.Tenant.name == person.tenant))
        if tenant_id is None:
            raise Refusal(Code.PERMISSION_DENIED, f"there is no tenant {person.tenant} here, which this token names")
    return Actor(
        token_id=None,
        role=person.role,
        name=f"{person.role.value}:{printable(person.subject)}"[:128],
        tenant_id=tenant_id,
        request_id=request_id,
        source=source,
        expires_at=person.expires_at,
        scope=hash_of("\n".join((person.issuer, person.subject, person.role, str(tenant_id)))),
    )
