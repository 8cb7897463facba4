# SPDX-License-Identifier: Apache-2.0
"""How far the shares of a tenant are scaled that uses more than its quota grants since that was cut.

Each slice that goes would change all others of the tenant, on every host. So what hosts enforce goes by `scaled_used`,
which follows the use from time to time; then the hosts are told. One document of a generation stays one document.
"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr_api.db.models import Quota
from vgpumgr_api.resources.generations import bump, hosts_of

PERIOD_S = 5


def set_scale(quota: Quota, *, limit_before: int) -> bool:
    """Goes by what is used now; True if that changes shares. The caller holds the quota and tells the hosts."""
    was_scaled = quota.scaled_used > limit_before
    quota.scaled_used = quota.share_used
    return was_scaled or quota.scaled_used > quota.share_limit


def follow(session: Session) -> bool:
    """Lets the shares of one tenant follow its use. A job of `housekeeping`: False if there is none to do."""
    behind = (Quota.scaled_used > Quota.share_limit, Quota.scaled_used != Quota.share_used)
    statement = select(Quota).where(*behind).limit(1).with_for_update(skip_locked=True)
    quota = session.scalar(statement.execution_options(populate_existing=True))
    if quota is None:
        return False
    quota.scaled_used = quota.share_used
    session.flush()
    bump(session, hosts_of(session, quota.tenant_id))
    return True
