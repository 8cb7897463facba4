# SPDX-License-Identifier: Apache-2.0
"""GPUs: what hosts report of them, and how much of them claims use."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from vgpumgr.cards import Card
from vgpumgr.control.executor_settings import LENDING
from vgpumgr.control.sysfs import DRIVER
from vgpumgr.wire.common import Page, Policy
from vgpumgr.wire.resources import Gpu, GpuPatch, HostState, MemoryClass
from vgpumgr_api.actors import Actor, require_operator, require_view, unknown
from vgpumgr_api.claims.workloads import workload_of
from vgpumgr_api.db import models
from vgpumgr_api.db.labels import GpuLabel
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.events import events
from vgpumgr_api.fleet.host_states import state_of_row
from vgpumgr_api.placement.labels import gpus_label, labels_of, patch_labels
from vgpumgr_api.resources.generations import IfMatch, require_match
from vgpumgr_api.resources.lookup import host_named
from vgpumgr_api.resources.paging import PageRequest, fetch
from vgpumgr_api.resources.patching import changes_of


def list_gpus(
    session: Session,
    actor: Actor,
    page: PageRequest,
    *,
    host: str | None = None,
    host_state: HostState | None = None,
    present: bool | None = None,
    labels: Mapping[str, str] | None = None,
) -> Page[Gpu]:
    """Returns GPUs, by host and address. For actors that see the cloud. `labels`: the GPU's own, or else its host's."""
    require_view(actor)
    statement = (
        select(models.Gpu)
        .join(models.Host, models.Host.id == models.Gpu.host_id)
        .outerjoin(HostReport, HostReport.host_id == models.Host.id)
    )
    if host is not None:
        statement = statement.where(models.Host.id == host_named(session, host).id)
    if host_state is not None:
        statement = statement.where(state_of_row() == host_state.value)
    if present is not None:
        statement = statement.where(models.Gpu.present if present else ~models.Gpu.present)
    statement = statement.where(*(gpus_label(key) == value for key, value in sorted((labels or {}).items())))
    rows, token = fetch(session, statement, kind="gpus", keys=[models.Host.name, models.Gpu.address], page=page)
    return Page(items=_gpus(session, [(row[0], row[1]) for row in rows]), next_page_token=token)


def get_gpu(session: Session, actor: Actor, gpu_id: UUID) -> Gpu:
    """Returns one GPU. For actors that see the whole cloud."""
    require_view(actor)
    return _gpus(session, [_found(session, gpu_id)])[0]


def patch_gpu(session: Session, actor: Actor, gpu_id: UUID, patch: GpuPatch, *, if_match: IfMatch) -> Gpu:
    """Changes labels, and the ratio by which fair slices may overcommit the GPU's time. For operators only.

    Existing slices keep the ratio of their claim, so nothing moves and no slice gets less.
    """
    require_operator(actor)
    changes = changes_of(patch)
    gpu, host = _found(session, gpu_id, lock=True)
    require_match(session, if_match, gpu.id, gpu.generation)
    detail: dict[str, Any] = {}
    if labels := patch_labels(session, GpuLabel, gpu.id, changes.get("labels", {})):
        detail["labels"] = labels
    ratio = changes.get("fair_ratio_permille", gpu.fair_ratio_permille)
    if ratio != gpu.fair_ratio_permille:
        detail["fair_ratio_permille"] = {"from": gpu.fair_ratio_permille, "to": ratio}
        gpu.fair_ratio_permille = ratio
    if detail:
        gpu.generation += 1
        name = f"{host}/{gpu.address}"
        events.record(session, actor, "gpu.set", name, generation=gpu.generation, detail=detail)
        session.flush()
    return _gpus(session, [(gpu, host)])[0]


def _found(session: Session, gpu_id: UUID, *, lock: bool = False) -> tuple[models.Gpu, str]:
    statement = (
        select(models.Gpu, models.Host.name)
        .join(models.Host, models.Host.id == models.Gpu.host_id)
        .where(models.Gpu.id == gpu_id)
    )
    row = session.execute(statement.with_for_update(of=models.Gpu) if lock else statement).one_or_none()
    if row is None:
        raise unknown("GPU", gpu_id)
    return row[0], row[1]


def _gpus(session: Session, rows: Sequence[tuple[models.Gpu, str]]) -> list[Gpu]:
    ids = [gpu.id for gpu, _ in rows]
    types, labels, windows = _types(session, ids), labels_of(session, GpuLabel, ids), _windows(session, ids)
    return [_gpu(gpu, host, types[gpu.id], labels[gpu.id], windows.get(gpu.id, 0)) for gpu, host in rows]


def _windows(session: Session, gpus: Sequence[UUID]) -> dict[UUID, int]:
    """Returns the bytes of host memory for slices' windows, by GPU, for GPUs whose slices have executors."""
    rows = session.execute(
        select(models.Slice.gpu_id, func.sum(models.Profile.window_bytes))
        .join(models.Profile, models.Profile.id == models.Slice.profile_id)
        .join(models.Gpu, models.Gpu.id == models.Slice.gpu_id)
        .where(models.Slice.gpu_id.in_(gpus), models.Gpu.engine == LENDING)
        .group_by(models.Slice.gpu_id)
    )
    return {row[0]: int(row[1]) for row in rows}


def _types(session: Session, gpus: Iterable[UUID]) -> dict[UUID, list[MemoryClass]]:
    types: dict[UUID, list[MemoryClass]] = defaultdict(list)
    for row in session.scalars(
        select(models.GpuType)
        .where(models.GpuType.gpu_id.in_(list(gpus)))
        .order_by(models.GpuType.mem_bytes, models.GpuType.mdev_type)
    ):
        types[row.gpu_id].append(MemoryClass(id=row.mdev_type, mem_bytes=row.mem_bytes))
    return types


def _driver(types: Sequence[MemoryClass]) -> str:
    """Returns a GPU's driver: the kernel prefixes the id of each mdev type with the function's driver."""
    return types[0].id.rpartition("-")[0] if types else ""


def _gpu(gpu: models.Gpu, host: str, types: list[MemoryClass], labels: dict[str, str], window_bytes: int) -> Gpu:
    driver = _driver(types)
    return Gpu(
        id=gpu.id,
        host=host,
        address=gpu.address,
        uuid=gpu.uuid,
        serial=gpu.serial,
        pci_ids=gpu.pci_ids,
        identified_by=Card(uuid=gpu.uuid, serial=gpu.serial).identified_by,
        engine=gpu.engine,
        backend=gpu.backend,
        driver=driver,
        adopted=driver not in ("", DRIVER),
        mem_bytes=gpu.mem_bytes,
        used_share_permille=gpu.share_used,
        used_mem_bytes=gpu.mem_used,
        types=types,
        timeslice_min_us=gpu.timeslice_min_us,
        switch_cost_us=gpu.switch_cost_us,
        present=gpu.present,
        fair_ratio_permille=gpu.fair_ratio_permille,
        policy=Policy(gpu.policy),
        places=gpu.places,
        reserve_limit_permille=gpu.reserve_limit_permille,
        used_reserve_permille=gpu.reserved_permille,
        used_window_bytes=window_bytes,
        workload=workload_of(gpu.backend),
        labels=labels,
        generation=gpu.generation,
    )
