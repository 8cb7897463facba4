# SPDX-License-Identifier: Apache-2.0
"""Which GPUs claims look at first: those where some claim could have had a place lately.

A claim has its quotas locked while it looks, and hosts in maintenance, offline or declared dead may be many, as may be
GPUs whose memory is used up. To say so of a GPU when it comes to be so would lock GPUs for each change of a host, which
claims lock the other way around. So it is a hint that follows some time later, and nothing relies on it: all is asked
of a GPU again, and a claim that finds no place among these looks at the others.
"""

from sqlalchemy import and_, case, false, func, select, update
from sqlalchemy.orm import Session

from vgpumgr.wire.common import BROKER
from vgpumgr_api.db.models import Gpu, GpuType, Host
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.db.statements import among, change, table_of
from vgpumgr_api.placement.obstacles import OF_HOST, Wanted, obstacles, parameters

PERIOD_S = 15
AT_ONCE = 2000

_ANY = Wanted(share_permille=1, mem_bytes=1)
"""What is wrong with a host is so for all claims."""


def follow(session: Session) -> bool:
    """Puts the hint of GPUs right. A job of `housekeeping`: True if there is more to do.

    Locks them only once it knows which, and then not for long. Those that others have locked are left for the next
    time, so that it waits for nobody.
    """
    types = select(GpuType.gpu_id, func.min(GpuType.mem_bytes).label("mem_bytes")).group_by(GpuType.gpu_id)
    smallest = types.subquery()
    wrong = obstacles(_ANY.shape)
    schedulable = and_(
        Gpu.present,
        case(
            (Gpu.backend == BROKER, Gpu.mem_used < Gpu.mem_bytes),
            else_=func.coalesce(Gpu.mem_used + smallest.c.mem_bytes <= Gpu.mem_bytes, false()),
        ),
        *(~wrong[reason] for reason in OF_HOST),
    )
    # All of them: with a LIMIT PostgreSQL expects many, and looks at one GPU after the other until it has so many.
    outdated = (
        select(Gpu.id, schedulable)
        .join(Host, Host.id == Gpu.host_id)
        .join(HostReport, HostReport.host_id == Host.id)
        .outerjoin(smallest, smallest.c.gpu_id == Gpu.id)
        .where(Gpu.schedulable != schedulable)
    )
    found = session.execute(outdated, parameters(session, _ANY)).all()
    now, later = found[:AT_ONCE], found[AT_ONCE:]
    for value in (True, False):
        gpus = [gpu_id for gpu_id, is_schedulable in now if is_schedulable is value]
        if gpus:
            still = select(Gpu.id).where(among(session, table_of(Gpu).c.id, gpus), Gpu.schedulable != value)
            free = still.with_for_update(key_share=True, skip_locked=True)
            change(session, update(Gpu).where(Gpu.id.in_(free)).values(schedulable=value))
    return bool(later)
