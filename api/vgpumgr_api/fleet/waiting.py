# SPDX-License-Identifier: Apache-2.0
"""The query of the task that waits on behalf of all hosts' agents."""

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr_api.db.models import Host, Installation


def desired_generations(session: Session) -> tuple[UUID, dict[UUID, int]]:
    """Returns the epoch and the generation of every host's desired state, with two queries for any number of hosts.

    There is no permission check, because the result does not leave the API: a waiting agent is checked before and after
    its wait.
    """
    epoch = session.scalars(select(Installation.epoch)).one()
    hosts = session.execute(select(Host.id, Host.desired_generation))
    return epoch, {host_id: generation for host_id, generation in hosts}  # noqa: C416  # rows are no pairs to a checker
