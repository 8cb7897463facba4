# SPDX-License-Identifier: Apache-2.0
"""What the one task looks at that waits on behalf of all hosts' agents."""

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr_api.db.models import Host, Installation


def desired_generations(session: Session) -> tuple[UUID, dict[UUID, int]]:
    """Returns the epoch and the generation of every host's desired state, by two queries however many there are.

    Asks nobody's permission, since nothing of it leaves the API: an agent that waits is checked before and after.
    """
    epoch = session.scalars(select(Installation.epoch)).one()
    hosts = session.execute(select(Host.id, Host.desired_generation))
    return epoch, {host_id: generation for host_id, generation in hosts}  # noqa: C416  # rows are no pairs to a checker
