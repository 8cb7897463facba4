# SPDX-License-Identifier: Apache-2.0
"""Figures of the fleet for metrics. Their number is limited, however large the fleet is."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Float, and_, case, cast, func, select
from sqlalchemy.orm import Session

from vgpumgr.wire.resources import SliceState
from vgpumgr_api.claims.progress import state_of_row
from vgpumgr_api.db import models, records
from vgpumgr_api.db.database import now
from vgpumgr_api.db.ledger import Unbooked
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.db.progress import SliceProgress
from vgpumgr_api.placement.obstacles import ONLINE

TENANTS_MAX = 100
GPU_SHARE_PERMILLE = 1000


@dataclass(frozen=True, kw_only=True)
class Figures:
    """`quotas`: (used, limit) of each resource, for the tenants that are closest to a limit."""

    hosts: dict[str, int]
    hosts_silent: int
    hosts_unconfirmed: int
    hosts_unknown: int
    hosts_second_boot: int
    slices_without_gpu: int
    heartbeat_s: float
    slices: dict[str, int]
    capacity: dict[str, int]
    granted: dict[str, int]
    outbox_events: int
    outbox_lag_s: float
    quotas: list[tuple[str, dict[str, tuple[int, int]]]]
    quotas_omitted: int
    unbooked_s: dict[str, float]


def figures(session: Session) -> Figures:
    """Returns the figures. There is no permission check: the API shows them to everybody who may read its metrics."""
    quotas = list(_quotas(session))
    shown = heapq.nlargest(TENANTS_MAX, quotas, key=lambda each: (_fullest(each[1]), each[0]))
    oldest, silent, unknown = _heartbeats(session)
    unnumbered = session.execute(
        select(func.count(), func.min(records.Event.at)).where(records.Event.seq.is_(None))
    ).one()
    gpus = session.execute(
        select(
            func.count(),
            func.coalesce(func.sum(models.Gpu.mem_bytes), 0),
            func.coalesce(func.sum(models.Gpu.share_used), 0),
            func.coalesce(func.sum(models.Gpu.mem_used), 0),
        ).where(models.Gpu.present)
    ).one()
    return Figures(
        hosts=_hosts(session),
        hosts_silent=silent,
        hosts_unconfirmed=_count(session, models.Host.enrolled_at.is_not(None), ~models.Host.epoch_confirmed),
        hosts_unknown=unknown,
        hosts_second_boot=_second_boots(session),
        slices_without_gpu=_slices_without_gpu(session),
        heartbeat_s=_age_s(session, oldest),
        slices=_slices(session),
        capacity={"gpus": gpus[0], "share_permille": gpus[0] * GPU_SHARE_PERMILLE, "mem_bytes": int(gpus[1])},
        granted={"share_permille": int(gpus[2]), "mem_bytes": int(gpus[3])},
        outbox_events=unnumbered[0],
        outbox_lag_s=_age_s(session, unnumbered[1]),
        quotas=shown,
        quotas_omitted=len(quotas) - len(shown),
        unbooked_s=_unbooked_s(session),
    )


def _hosts(session: Session) -> dict[str, int]:
    state = case(
        (models.Host.fenced_at.is_not(None), "fenced"),
        (models.Host.enrolled_at.is_(None), "announced"),
        (models.Host.cordoned_for == "maintenance", "maintenance"),
        (HostReport.lost_at.is_not(None), "lost"),
        else_=func.coalesce(models.Host.cordoned_for, models.Host.state),
    ).label("state")
    each = select(state).outerjoin(HostReport, HostReport.host_id == models.Host.id).subquery()
    return dict(session.execute(select(each.c.state, func.count()).group_by(each.c.state)).all())


def _slices(session: Session) -> dict[str, int]:
    each = (
        select(state_of_row().label("state"))
        .select_from(models.Slice)
        .outerjoin(SliceProgress, SliceProgress.slice_id == models.Slice.id)
        .subquery()
    )
    return dict(session.execute(select(each.c.state, func.count()).group_by(each.c.state)).all())


def _slices_without_gpu(session: Session) -> int:
    """Returns the number of claims whose card is missing from its host. A fenced host's claims are not counted."""
    statement = (
        select(func.count())
        .select_from(models.Slice)
        .join(models.Gpu, models.Gpu.id == models.Slice.gpu_id)
        .where(models.Slice.state == SliceState.CLAIMED.value, ~models.Gpu.present)
    )
    return session.scalar(statement) or 0


def _heartbeats(session: Session) -> tuple[datetime | None, int, int]:
    enrolled = (models.Host.enrolled_at.is_not(None), models.Host.fenced_at.is_(None))
    silent = case((HostReport.reported_at <= now(session) - ONLINE, 1), (HostReport.reported_at.is_(None), 1), else_=0)
    # Until a host has reported after its enrolment, its unknown slices are only an assumption and are not counted. The
    # host counts as silent instead.
    unknown = case((and_(HostReport.unknown_slices > 0, HostReport.reported_at.is_not(None)), 1), else_=0)
    row = session.execute(
        select(
            func.min(HostReport.reported_at),
            func.coalesce(func.sum(silent), 0),
            func.coalesce(func.sum(unknown), 0),
        )
        .join(models.Host, models.Host.id == HostReport.host_id)
        .where(*enrolled)
    ).one()
    return row[0], int(row[1]), int(row[2])


def _second_boots(session: Session) -> int:
    statement = select(func.count()).select_from(HostReport).where(HostReport.second_boot_at.is_not(None))
    return session.scalar(statement) or 0


def _quotas(session: Session) -> Iterator[tuple[str, dict[str, tuple[int, int]]]]:
    quota = models.Quota
    for row in session.execute(
        select(
            models.Tenant.name,
            *(quota.share_used, quota.share_limit),
            *(quota.mem_used, quota.mem_limit),
            *(quota.slices_used, quota.slices_limit),
        ).join(models.Tenant, models.Tenant.id == quota.tenant_id)
    ):
        yield row[0], {"share_permille": (row[1], row[2]), "mem_bytes": (row[3], row[4]), "slices": (row[5], row[6])}


def _unbooked_s(session: Session) -> dict[str, float]:
    # Reported values are not trusted: their sum may overflow an integer in SQLite.
    rows = select(Unbooked.reason, func.sum(cast(Unbooked.run_ns, Float))).group_by(Unbooked.reason)
    return {reason: float(run_ns) / 1e9 for reason, run_ns in session.execute(rows)}


def _fullest(resources: dict[str, tuple[int, int]]) -> float:
    return max(used / limit if limit else float(used) for used, limit in resources.values())


def _count(session: Session, *conditions: object) -> int:
    return session.scalar(select(func.count()).select_from(models.Host).where(*conditions)) or 0  # type: ignore[arg-type]


def _age_s(session: Session, moment: datetime | None) -> float:
    return max((now(session) - moment).total_seconds(), 0.0) if moment is not None else 0.0
