# SPDX-License-Identifier: Apache-2.0
"""Scaling of the shares of a tenant whose use exceeds its quota after a cut.

If shares were scaled by the current use, each slice that ends would change the shares of all other slices of the
tenant, on every host. Therefore the enforced shares are computed from `scaled_used`. It is set to the use periodically,
and then the hosts' desired generations advance. So a document of one generation never changes.
"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr_api.db.models import Quota
from vgpumgr_api.resources.generations import bump, hosts_of

PERIOD_S = 5


def set_scale(quota: Quota, *, limit_before: int) -> bool:
    """Scales by the current use. Returns True if that changes shares.

    The caller holds the quota's lock, and advances the hosts' desired generations if shares change.
    """
    was_scaled = quota.scaled_used > limit_before
    quota.scaled_used = quota.share_used
    return was_scaled or quota.scaled_used > quota.share_limit


def follow(session: Session) -> bool:
    """Updates the scale of one tenant. A job of `housekeeping`: returns False if there is none to update."""
    behind = (Quota.scaled_used > Quota.share_limit, Quota.scaled_used != Quota.share_used)
    statement = select(Quota).where(*behind).limit(1).with_for_update(skip_locked=True)
    quota = session.scalar(statement.execution_options(populate_existing=True))
    if quota is None:
        return False
    quota.scaled_used = quota.share_used
    session.flush()
    bump(session, hosts_of(session, quota.tenant_id))
    return True
