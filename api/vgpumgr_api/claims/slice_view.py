# SPDX-License-Identifier: Apache-2.0
"""Claims joined with the rows that determine what is enforced for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import Row, Select, select
from sqlalchemy.orm import Bundle, aliased

from vgpumgr.wire.common import Band, ExecutorState, Mode, Policy, Workload
from vgpumgr.wire.resources import Enforcement, Level, Observation, ObservedExecutor, Slice, SliceState, SliceTie
from vgpumgr_api.db import models
from vgpumgr_api.db.observations import SliceObservation
from vgpumgr_api.db.progress import SliceProgress
from vgpumgr_api.tenancy.enforcement import (
    Timeslice,
    Use,
    counted_permille,
    effective_timeslice_us,
    enforced_permille,
    means_of,
)

Part = Row[*tuple[Any, ...]]
"""The columns of one table that are shown, by name."""

_slice, _gpu = models.Slice, models.Gpu
_SLICE: Bundle[Any] = Bundle(
    "slice",
    *(_slice.id, _slice.generation, _slice.created_at, _slice.state, _slice.vm_uuid, _slice.mdev_type),
    *(_slice.mode, _slice.band, _slice.share_permille, _slice.mem_bytes, _slice.fair_ratio_permille),
    *(_slice.affinity, _slice.affinity_level, _slice.anti_affinity, _slice.anti_affinity_level),
    *(_slice.reserve_period_us, _slice.workload, _slice.moved_from, _slice.moved_from_host_id, _slice.moving),
)
_GPU: Bundle[Any] = Bundle(
    "gpu",
    *(_gpu.id, _gpu.address, _gpu.timeslice_min_us, _gpu.max_chunk_us, _gpu.policy, _gpu.backend),
    *(_gpu.switch_cost_us, _gpu.present, _gpu.engine, _gpu.uuid, _gpu.serial, _gpu.pci_ids),
)
_OBSERVED: Bundle[Any] = Bundle(
    "observed",
    *(SliceObservation.applied_permille, SliceObservation.present, SliceObservation.open),
    *(SliceObservation.run_ns, SliceObservation.items, SliceObservation.reported_at),
    *(SliceObservation.executor_state, SliceObservation.executor_restarts, SliceObservation.executor_reason),
    *(SliceObservation.executor_pause_s, SliceObservation.executor_memory_used_bytes),
    *(SliceObservation.executor_memory_bytes, SliceObservation.enforced_by),
)
_PROGRESS: Bundle[Any] = Bundle(
    "progress", *(SliceProgress.state, SliceProgress.since, SliceProgress.reason, SliceProgress.detail)
)
GPU_ABSENT = "gpu.absent"
"""The state reason of a slice whose GPU is missing from its host."""
MOVING, MOVED = "slice.moving", "slice.moved"
"""State reasons: no VM may start with the slice until its move ends (MOVING), or ever again (MOVED). See `moves`."""

_ENDING = (SliceState.RELEASING, SliceState.LOST)
_LIMITS: Bundle[Any] = Bundle(
    "limits",
    *(models.Profile.executor_memory_max_bytes, models.Profile.executor_tasks_max),
    models.Profile.executor_cpu_max_permille,
)
_OWN = aliased(models.Quota)
_ACCOUNT = aliased(models.Quota)


class SeenGpu(Protocol):
    """The members of a GPU that its slices show."""

    @property
    def id(self) -> UUID: ...
    @property
    def address(self) -> str: ...
    @property
    def timeslice_min_us(self) -> int: ...
    @property
    def switch_cost_us(self) -> int: ...
    @property
    def max_chunk_us(self) -> int: ...
    @property
    def policy(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def present(self) -> bool: ...
    @property
    def engine(self) -> str: ...
    @property
    def pci_ids(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class View:
    """One claim with its context. `permille`: the enforced share. `limits`: its executor's limits, set by `views`."""

    slice: models.Slice | Part
    gpu: SeenGpu
    tenant: str
    profile: str
    host: str
    timeslice_us: int
    permille: int
    observed: Part | None
    progress: Part | None
    limits: Part | None


@cache
def views() -> Select[*tuple[Any, ...]]:
    """Returns the statement whose rows `view` takes. The caller may add conditions.

    It selects columns, not entities: a page of a thousand would otherwise create four thousand ORM objects for nothing.
    """
    return (
        select(
            _SLICE,
            _GPU,
            models.Tenant.name,
            models.Profile.name,
            models.Host.name,
            _OWN.timeslice_us,
            _OWN.share_limit,
            _OWN.scaled_used,
            _ACCOUNT.share_limit,
            _ACCOUNT.scaled_used,
            _OWN.timeslice_max_us,
            _ACCOUNT.timeslice_max_us,
            _OBSERVED,
            _PROGRESS,
            _LIMITS,
        )
        .join(models.Gpu, models.Gpu.id == models.Slice.gpu_id)
        .join(models.Host, models.Host.id == models.Gpu.host_id)
        .join(models.Tenant, models.Tenant.id == models.Slice.tenant_id)
        .join(models.Profile, models.Profile.id == models.Slice.profile_id)
        .join(_OWN, _OWN.tenant_id == models.Tenant.id)
        .outerjoin(_ACCOUNT, _ACCOUNT.tenant_id == models.Tenant.account_id)
        .outerjoin(SliceObservation, SliceObservation.slice_id == models.Slice.id)
        .outerjoin(SliceProgress, SliceProgress.slice_id == models.Slice.id)
    )


def view(row: Row[*tuple[Any, ...]]) -> View:
    """Converts a row of `views()`."""
    claim, gpu, tenant, profile, host, timeslice_us, limit, used, account_limit, account_used = row[:10]
    own_max_us, account_max_us = row[10:12]
    # An outer join without a match gives null in every column.
    observed = None if row.observed.reported_at is None else row.observed
    progress = None if row.progress.state is None else row.progress
    timeslice = Timeslice(us=timeslice_us, max_us=own_max_us)
    owners = [Use(limit=limit, used=used)]
    if account_limit is not None:
        timeslice = Timeslice(us=timeslice_us, max_us=min(own_max_us, account_max_us))
        owners.append(Use(limit=account_limit, used=account_used))
    names = {"tenant": tenant, "profile": profile, "host": host}
    parts = {"observed": observed, "progress": progress, "limits": row.limits}
    return seen(claim, gpu, **names, timeslice=timeslice, owners=owners, **parts)


def seen(
    claim: models.Slice | Part,
    gpu: SeenGpu,
    *,
    tenant: str,
    profile: str,
    host: str,
    timeslice: Timeslice,
    owners: Sequence[Use],
    observed: Part | None = None,
    progress: Part | None = None,
    limits: Part | None = None,
) -> View:
    """Returns a claim with its context. `timeslice`: its tenant's. `owners`: the use of its tenant and its account."""
    return View(
        slice=claim,
        gpu=gpu,
        tenant=tenant,
        profile=profile,
        host=host,
        timeslice_us=effective_timeslice_us(timeslice, gpu.timeslice_min_us, gpu.switch_cost_us),
        permille=enforced_permille(counted_permille(claim.share_permille, claim.fair_ratio_permille), owners),
        observed=observed,
        progress=progress,
        limits=limits,
    )


def answer(seen: View) -> Slice:
    """Returns a claim as clients see it."""
    claim, gpu, observed, progress = seen.slice, seen.gpu, seen.observed, seen.progress
    means = means_of(gpu)
    state = SliceState(progress.state if progress else claim.state)
    reason, detail = (progress.reason, progress.detail) if progress else ("", "")
    if claim.moving:
        reason = reason or MOVING
    elif state is SliceState.LOST and detail:  # a slice lost with its host has no detail
        reason = MOVED
    if not gpu.present and state not in _ENDING:
        reason, detail = GPU_ABSENT, f"its GPU is not in its host; {detail}" if detail else "its GPU is not in its host"
    return Slice(
        id=claim.id,
        tenant=seen.tenant,
        profile=seen.profile,
        share_permille=claim.share_permille,
        mem_bytes=claim.mem_bytes,
        mode=Mode(claim.mode),
        vm_uuid=claim.vm_uuid,
        moved_from=claim.moved_from,
        host=seen.host,
        gpu=gpu.address,
        gpu_id=gpu.id,
        mdev_type=claim.mdev_type,
        state=state,
        state_since=progress.since if progress else claim.created_at,
        state_reason=reason,
        state_detail=detail,
        affinity=tie(claim.affinity, claim.affinity_level),
        anti_affinity=tie(claim.anti_affinity, claim.anti_affinity_level),
        band=Band(claim.band),
        reserve_period_us=claim.reserve_period_us,
        workload=Workload(claim.workload),
        enforcement=Enforcement(
            requested_permille=seen.permille,
            applied_permille=observed.applied_permille if observed else None,
            timeslice_us=seen.timeslice_us,
            granularity_us=gpu.max_chunk_us,
            scope=means.scope,
            semantics="cap" if claim.mode == Mode.STRICT.value else "weight",
            enforced_by=(observed.enforced_by if observed else "") or means.enforced_by,
            mem_enforced_by=means.mem_enforced_by,
            policy=Policy(gpu.policy),
        ),
        observed=Observation(
            present=observed.present,
            open=observed.open,
            run_ns=observed.run_ns,
            items=observed.items,
            executor=ObservedExecutor(
                state=ExecutorState(observed.executor_state),
                restarts=observed.executor_restarts,
                reason=observed.executor_reason,
                pause_s=observed.executor_pause_s,
                memory_used_bytes=observed.executor_memory_used_bytes,
                memory_bytes=observed.executor_memory_bytes,
            ),
            reported_at=observed.reported_at,
        )
        if observed
        else None,
        generation=claim.generation,
        created_at=claim.created_at,
    )


def tie(key: str | None, level: str | None) -> SliceTie | None:
    """Returns the affinity stored in two columns."""
    return None if key is None or level is None else SliceTie(key=key, level=Level(level))
