# SPDX-License-Identifier: Apache-2.0
"""Maintains `Gpu.schedulable`: the GPUs on which some claim could recently have been placed.

Claims search these first, because they hold the locks of quotas meanwhile. Many hosts may be in maintenance, offline or
declared dead, and many GPUs may be out of memory. Updating the value with each change of a host would lock GPUs after
the host, against the lock order of claims. So the value is a hint that is updated with a delay, and nothing relies on
it: a claim checks all conditions of a GPU again, and if it finds no place, it searches the other GPUs.
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
"""Any claim will do, because obstacles of a host are the same for all claims."""


def follow(session: Session) -> bool:
    """Updates the hint of GPUs. A job of `housekeeping`: returns True if there is more to do.

    It locks only the GPUs to change, and briefly. GPUs that others have locked are left for the next time, so it never
    waits.
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
    # Without a LIMIT: with a LIMIT, PostgreSQL expects many matches and examines one GPU after another until it has
    # enough.
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
