# SPDX-License-Identifier: Apache-2.0
"""Takes a GPU for a claim, or says why none fits."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Row, Select, String, Update, literal, or_, select, update
from sqlalchemy.orm import Session

from vgpumgr.wire.common import PERMILLE, PROCESS_TYPE, Policy
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Placement
from vgpumgr_api.db.database import TryAgain
from vgpumgr_api.db.models import Gpu, GpuType, Host
from vgpumgr_api.db.statements import spelled_out
from vgpumgr_api.errors import Refusal
from vgpumgr_api.placement.candidates import anywhere, best, best_beyond, is_plain, walk
from vgpumgr_api.placement.obstacles import (
    MEM,
    SHAPES,
    Shape,
    Wanted,
    census,
    counted,
    in_words,
    parameters,
    reserved,
    settled,
    type_mem_bytes,
    unlike,
)
from vgpumgr_api.placement.ties import OF_VM
from vgpumgr_api.tenancy.enforcement import counted_permille, reserved_permille

SHOWN = (
    Gpu.id,
    Gpu.address,
    Gpu.timeslice_min_us,
    Gpu.switch_cost_us,
    Gpu.max_chunk_us,
    Gpu.policy,
    Gpu.backend,
    Gpu.engine,
    Gpu.pci_ids,
    Gpu.host_id,
    select(Host.name).where(Host.id == Gpu.host_id).correlate(Gpu).scalar_subquery().label("host"),
)
"""The columns of a GPU for a `Place`."""


@dataclass(frozen=True, kw_only=True)
class PlacedGpu:
    """The members of a GPU that its slices show."""

    id: UUID
    address: str
    timeslice_min_us: int
    switch_cost_us: int
    max_chunk_us: int
    policy: str
    backend: str
    engine: str
    pci_ids: str
    present: bool = True


@dataclass(frozen=True, kw_only=True)
class Place:
    """The GPU taken, locked until the end of the transaction. `chosen`: it was chosen now, not reserved before."""

    gpu: PlacedGpu
    host_id: UUID
    host: str
    chosen: bool
    mdev_type: str
    type_mem_bytes: int
    fair_ratio_permille: int
    reserved_permille: int


def take(session: Session, wanted: Wanted, *, first: bool = True) -> Place:
    """Chooses a GPU, locks it and charges it. Raises Refusal(CAPACITY_NONE) with a count of GPUs per reason.

    GPUs locked by other claims are skipped, and waited for only if no other GPU fits. If the transaction already holds
    a GPU (`first` False), this never waits, because two such transactions could deadlock. It raises TryAgain instead.
    """
    if wanted.policy is not Policy.BEST_EFFORT:
        session.flush()  # so that places reserved earlier in this transaction count
    shape, placement = wanted.shape, wanted.placement
    if wanted.vm is None:
        taken = _taken(session, wanted, [_at_once(shape, placement)])
    else:  # usually the VM has no slice yet; the statement itself checks that
        taken = _taken(session, wanted, [_for_new_vm(shape, placement)])
        if taken is None and (wanted := settled(session, wanted)).where_vm_is:
            shape = wanted.shape
            taken = _taken(session, wanted, [_at_once(shape, placement)])
    if taken is None and first and placement is Placement.PACK and is_plain(shape):
        taken = _taken(session, wanted, [_patiently(shape)])  # cheaper than examining all GPUs
    if taken is None and _fits_somewhere(session, wanted):
        taken = _taken(session, wanted, _despite_locks(shape, placement, wait=first))
    if taken is None:
        raise _none(session, wanted)
    _require_alike(session, wanted, taken.id)
    ratio = PERMILLE if wanted.shape.whole else taken.fair_ratio_permille
    counts = counted_permille(wanted.share_permille, ratio)
    period_us = wanted.reserve_period_us
    return Place(
        gpu=placed(taken),
        host_id=taken.host_id,
        host=taken.host,
        chosen=True,
        mdev_type=taken.mdev_type,
        type_mem_bytes=taken.type_mem_bytes,
        fair_ratio_permille=ratio,
        reserved_permille=0 if period_us is None else reserved_permille(counts, taken.max_chunk_us, period_us),
    )


def _taken(session: Session, wanted: Wanted, attempts: Sequence[Update]) -> Row[*tuple[Any, ...]] | None:
    asked = parameters(session, wanted)
    rows = (session.connection().execute(attempt, asked).one_or_none() for attempt in attempts)
    return next((row for row in rows if row is not None), None)


def _fits_somewhere(session: Session, wanted: Wanted) -> bool:
    """Whether any GPU fits, locked or not. If none does, further attempts would examine all GPUs in vain."""
    return session.connection().execute(anywhere(wanted.shape), parameters(session, wanted)).first() is not None


def _require_alike(session: Session, wanted: Wanted, gpu_id: UUID) -> None:
    """Raises TryAgain if an incompatible slice was placed on the GPU before it was locked."""
    wrong = unlike(wanted.shape)
    if not wrong:
        return
    there = select(Gpu.id).where(Gpu.id == gpu_id, or_(*wrong.values()))
    if session.connection().execute(there, parameters(session, wanted)).first() is not None:
        raise TryAgain


def placed(row: Row[*tuple[Any, ...]]) -> PlacedGpu:
    """Converts a row with the columns `SHOWN`."""
    return PlacedGpu(
        id=row.id,
        address=row.address,
        timeslice_min_us=row.timeslice_min_us,
        switch_cost_us=row.switch_cost_us,
        max_chunk_us=row.max_chunk_us,
        policy=row.policy,
        backend=row.backend,
        engine=row.engine,
        pci_ids=row.pci_ids,
    )


@lru_cache(maxsize=SHAPES)
def _at_once(shape: Shape, placement: Placement) -> Update:
    """Returns the first attempt, which skips locked GPUs."""
    return _charged(best(shape, placement).with_for_update(key_share=True, of=Gpu, skip_locked=True), shape)


@lru_cache(maxsize=SHAPES)
def _patiently(shape: Shape) -> Update:
    """Like `_at_once` for packing where few GPUs were compared, but waits for locked GPUs."""
    return _charged(best_beyond(shape).with_for_update(key_share=True, of=Gpu), shape)


@lru_cache(maxsize=SHAPES)
def _despite_locks(shape: Shape, placement: Placement, *, wait: bool) -> list[Update]:
    """Returns further attempts among more GPUs: first some that skip locked GPUs, then, if `wait`, some that wait."""
    walks = [walk(shape, placement), walk(shape, placement, schedulable=False)]
    past = walks if placement is Placement.PACK else walks[1:]
    return [
        *(_charged(gpus.with_for_update(key_share=True, of=Gpu, skip_locked=True), shape) for gpus in past),
        *(_charged(gpus.with_for_update(key_share=True, of=Gpu), shape) for gpus in walks if wait),
    ]


@lru_cache(maxsize=SHAPES)
def _for_new_vm(shape: Shape, placement: Placement) -> Update:
    """Like `_at_once`, for a VM without a slice."""
    chosen = best(shape, placement).where(~OF_VM.exists()).with_for_update(key_share=True, of=Gpu, skip_locked=True)
    return _charged(chosen, shape)


def _charged(chosen: Select[UUID], shape: Shape) -> Update:
    """Charges the GPU that a statement chooses and locks."""
    mdev_type, mem_bytes = _type(shape)
    return spelled_out(
        update(Gpu)
        .where(Gpu.id == chosen.correlate(None).scalar_subquery())
        .values(
            share_used=Gpu.share_used + counted(shape),
            mem_used=Gpu.mem_used + type_mem_bytes(shape),
            **({"reserved_permille": Gpu.reserved_permille + reserved(shape)} if shape.latency else {}),
        )
        .returning(
            *SHOWN,
            Gpu.fair_ratio_permille,
            mdev_type.label("mdev_type"),
            mem_bytes.label("type_mem_bytes"),
        )
    )


def _type(shape: Shape) -> tuple[ColumnElement[str], ColumnElement[int]]:
    """Returns the mdev type taken, and its memory."""
    if shape.process:
        return literal(PROCESS_TYPE, String()), MEM
    kind = (
        select(GpuType)
        .where(GpuType.gpu_id == Gpu.id, GpuType.mem_bytes >= MEM)
        .order_by(GpuType.mem_bytes, GpuType.mdev_type)
        .limit(1)
        .correlate(Gpu)
    )
    return (
        kind.with_only_columns(GpuType.mdev_type).scalar_subquery(),
        kind.with_only_columns(GpuType.mem_bytes).scalar_subquery(),
    )


def _none(session: Session, wanted: Wanted) -> Refusal:
    """Returns the refusal. Raises TryAgain if a GPU fits, because it was locked or has just become free."""
    fitting, reasons = census(session, wanted)
    if fitting:
        raise TryAgain
    return Refusal(
        Code.CAPACITY_NONE,
        in_words(wanted, reasons),
        reasons=tuple(reasons),
        limits={"share_permille": wanted.share_permille, "mem_bytes": wanted.mem_bytes},
    )
