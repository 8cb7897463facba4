# SPDX-License-Identifier: Apache-2.0
"""GPUs: what hosts reported of them, and what claims use."""

from collections import defaultdict
from collections.abc import Iterable
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Page
from vgpumgr.wire.resources import Gpu, MemoryClass
from vgpumgr_api.db import models
from vgpumgr_api.services.actors import Actor, require_view
from vgpumgr_api.services.lookup import host_named
from vgpumgr_api.services.paging import PageRequest, fetch


def list_gpus(session: Session, actor: Actor, page: PageRequest, *, host: str | None = None) -> Page[Gpu]:
    """Returns GPUs, by host and address. For who sees the cloud."""
    require_view(actor)
    statement = select(models.Gpu).join(models.Host, models.Host.id == models.Gpu.host_id)
    if host is not None:
        statement = statement.where(models.Host.id == host_named(session, host).id)
    rows, token = fetch(session, statement, kind="gpus", keys=[models.Host.name, models.Gpu.address], page=page)
    types = _types(session, [row[0].id for row in rows])
    return Page(items=[_gpu(row[0], row[1], types[row[0].id]) for row in rows], next_page_token=token)


def _types(session: Session, gpus: Iterable[UUID]) -> dict[UUID, list[MemoryClass]]:
    types: dict[UUID, list[MemoryClass]] = defaultdict(list)
    for row in session.scalars(
        select(models.GpuType)
        .where(models.GpuType.gpu_id.in_(list(gpus)))
        .order_by(models.GpuType.mem_bytes, models.GpuType.mdev_type)
    ):
        types[row.gpu_id].append(MemoryClass(id=row.mdev_type, mem_bytes=row.mem_bytes))
    return types


def _gpu(gpu: models.Gpu, host: str, types: list[MemoryClass]) -> Gpu:
    return Gpu(
        id=gpu.id,
        host=host,
        address=gpu.address,
        engine=gpu.engine,
        backend=gpu.backend,
        mem_bytes=gpu.mem_bytes,
        used_share_permille=gpu.share_used,
        used_mem_bytes=gpu.mem_used,
        types=types,
        timeslice_min_us=gpu.timeslice_min_us,
        present=gpu.present,
    )
