# SPDX-License-Identifier: Apache-2.0
"""The obstacles to a claim on a GPU, as conditions for the database, and the number of GPUs with each.

Every claim checks them, so the conditions are built once for each `Shape`, and their statements run with `parameters`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    ScalarSelect,
    String,
    Uuid,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
)
from sqlalchemy.orm import Session

from vgpumgr.wire.common import BROKER, PERMILLE, Mode, Policy, Workload
from vgpumgr.wire.problem import Reason
from vgpumgr.wire.resources import Placement
from vgpumgr_api.db.database import now
from vgpumgr_api.db.labels import GpuLabel, HostLabel
from vgpumgr_api.db.models import Gpu, GpuType, Host, Profile, Slice
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.db.reservations import Hold
from vgpumgr_api.db.types import Instant
from vgpumgr_api.placement.labels import gpus_label
from vgpumgr_api.placement.ties import NO_TIES, OF_VM, Ties, TiesShape, Vm

ONLINE = timedelta(seconds=90)
"""A host that has not reported for longer takes no claims."""

SHAPES = 256
"""The maximum number of claim shapes whose statements are cached."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The properties of a claim that the text of a statement depends on. `labels`: how many labels are selected.

    `whole`: the claim counts its full share, whatever the GPU's ratio. `latency`: the claim is of the latency band.
    `process`: the claim is for processes, so it needs no mdev type.
    """

    whole: bool
    policy: Policy
    latency: bool
    on_host: bool
    labels: int
    ties: TiesShape
    process: bool = False


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a claim needs of a GPU. `host_id`: the only permitted host.

    `vm`: if that VM has slices, only their host is permitted. `where_vm_is`: whether `host_id` is the host of the VM's
    slices. `discreet`: the actor may not learn which hosts and labels exist. `reserve_period_us`: None outside the
    latency band.
    """

    share_permille: int
    mem_bytes: int
    mode: Mode = Mode.FAIR
    host_id: UUID | None = None
    vm: Vm | None = None
    where_vm_is: bool = False
    placement: Placement = Placement.PACK
    selector: Mapping[str, str] = field(default_factory=dict)
    ties: Ties = NO_TIES
    policy: Policy = Policy.BEST_EFFORT
    reserve_period_us: int | None = None
    discreet: bool = False
    workload: Workload = Workload.VM

    @property
    def shape(self) -> Shape:
        return Shape(
            whole=self.mode is Mode.STRICT or self.policy is not Policy.BEST_EFFORT,
            policy=self.policy,
            latency=self.reserve_period_us is not None,
            on_host=self.host_id is not None,
            labels=len(self.selector),
            ties=self.ties.shape,
            process=self.workload is Workload.PROCESS,
        )


def settled(session: Session, wanted: Wanted) -> Wanted:
    """Returns `wanted` with the host of its VM's slices in place of `vm`; without a host if the VM has no slices."""
    if wanted.vm is None:
        return wanted
    host_id: UUID | None = session.connection().scalar(OF_VM, wanted.vm.parameters())
    return replace(wanted, host_id=host_id, vm=None, where_vm_is=host_id is not None)


SHARE = bindparam("share", type_=BigInteger())
PERIOD = bindparam("period", type_=BigInteger())
MEM = bindparam("mem", type_=BigInteger())


def parameters(session: Session, wanted: Wanted) -> dict[str, Any]:
    """Returns the parameters of statements built from the conditions for the shape of `wanted`."""
    found: dict[str, Any] = {
        "share": wanted.share_permille,
        "mem": wanted.mem_bytes,
        "heard_since": now(session) - ONLINE,
        **wanted.ties.parameters(),
    }
    if wanted.vm is not None:
        found |= wanted.vm.parameters()
    if wanted.reserve_period_us is not None:
        found["period"] = wanted.reserve_period_us
    if wanted.host_id is not None:
        found["on_host"] = wanted.host_id
    for number, (key, value) in enumerate(sorted(wanted.selector.items())):
        found |= {f"label_{number}": key, f"label_{number}_value": value}
    return found


def policy_of(profile: Profile) -> Policy:
    """Returns the policy that a GPU must have for slices of this profile."""
    return Policy(profile.policy or Policy.BEST_EFFORT)


RESERVE_CHUNKS = 4
"""The scheduler's rule: a period must have room for so many pieces of work."""

# In the order in which they are checked: a GPU counts under its first obstacle.
DETAILS = {
    "host.other": "on another host than the one that is required",
    "labels.other": "they or their host lack a label that is selected",
    "policy.other": "shared by another policy than the one that is required",
    "workload.other": "for the other workload: GPUs are for VMs unless their host sets them aside for processes",
    "affinity.apart": "not where the tenant's slices of this affinity are",
    "anti_affinity.taken": "where the tenant has a slice of this anti-affinity",
    "host.fenced": "their host was declared dead; re-enrol it when it is back",
    "host.draining": "their host is being drained",
    "host.maintenance": "their host is in maintenance",
    "host.cordoned": "their host is cordoned",
    "host.offline": "their host is not enrolled, or has not reported for 90 s",
    "host.unconfirmed": "the database was restored and their host is not confirmed; compare, then confirm its epoch",
    "gpu.unknown_slices": "their host has slices that the database does not know, or may start such: stop their VMs; "
    "only where the database has lost commits and nobody said so: vgpumgr-api new-epoch",
    "gpu.absent": "not in their host's last report",
    "type.none": "no mdev type has enough memory",
    "policy.unequal": "all their slices get the same share, and those that exist have another one",
    "policy.places": "all their places are taken, or have less than that share",
    "share.full": "too little share is free",
    "reserve.full": "too little of their time is left to reserve, or their longest piece of work is too long",
    "memory.full": "too little memory is free",
}

ROOM = ("type.none", "policy.unequal", "policy.places", "share.full", "reserve.full", "memory.full")
"""Obstacles that do not apply to a claim with a reserved place."""

NAMED = ("host.other", "labels.other")
"""Obstacles due to the host and labels that a claim names."""

OF_HOST = (
    "host.fenced",
    "host.draining",
    "host.maintenance",
    "host.cordoned",
    "host.offline",
    "host.unconfirmed",
    "gpu.unknown_slices",
)
"""Obstacles of a GPU's host, not of the GPU."""

_FITS: ColumnElement[int] = literal_column("-1")
"""Stands for the number of an obstacle if there is none."""


def counted(shape: Shape) -> ColumnElement[int]:
    """Returns the share that the claim would count on a GPU; see `enforcement.counted_permille`."""
    if shape.whole:
        return SHARE
    return (SHARE * PERMILLE + Gpu.fair_ratio_permille - 1) // Gpu.fair_ratio_permille


def serves(shape: Shape) -> ColumnElement[bool]:
    """Whether a GPU is for claims of this workload, according to its host's settings."""
    return Gpu.backend == BROKER if shape.process else Gpu.backend != BROKER


def type_mem_bytes(shape: Shape) -> ColumnElement[int]:
    """Returns the memory of the smallest sufficient type, NULL if there is none. Processes take what they ask for."""
    return MEM if shape.process else _type_mem_bytes()


def _type_mem_bytes() -> ScalarSelect[int]:
    return (
        select(func.min(GpuType.mem_bytes))
        .where(GpuType.gpu_id == Gpu.id, GpuType.mem_bytes >= MEM)
        .correlate(Gpu)
        .scalar_subquery()
    )


def share_free(shape: Shape) -> ColumnElement[bool]:
    """Whether a GPU has enough free share. The first part uses an index, so that full GPUs are not read."""
    return and_(Gpu.share_used <= PERMILLE - _least(shape), Gpu.share_used + counted(shape) <= PERMILLE)


def reserved(shape: Shape) -> ColumnElement[int]:
    """Returns how much the claim would count of the reservable time; see `enforcement.reserved_permille`."""
    return counted(shape) + (PERMILLE * Gpu.max_chunk_us + PERIOD - 1) // PERIOD


def reserve_free(shape: Shape) -> ColumnElement[bool]:
    """Whether a GPU has enough reservable time left. For the latency band only."""
    return and_(
        Gpu.reserved_permille + reserved(shape) <= Gpu.reserve_limit_permille,
        RESERVE_CHUNKS * Gpu.max_chunk_us <= PERIOD,
    )


def unlike(shape: Shape) -> dict[str, ColumnElement[bool]]:
    """Returns obstacles due to other slices on a GPU whose policy divides time by slices or places, by reason.

    They may have changed before the GPU is locked, so they must be checked again under the lock.
    """
    if shape.policy is Policy.BEST_EFFORT:
        return {}
    slices = select(Slice.id).where(Slice.gpu_id == Gpu.id).correlate(Gpu)
    holds = select(Hold.id).where(Hold.gpu_id == Gpu.id).correlate(Gpu)
    found: dict[str, ColumnElement[bool]] = {
        "policy.unequal": or_(
            slices.where(Slice.share_permille != SHARE).exists(), holds.where(Hold.share_permille != SHARE).exists()
        )
    }
    if shape.policy is Policy.FIXED_SHARE:
        taken = (
            slices.with_only_columns(func.count()).scalar_subquery()
            + holds.with_only_columns(func.count()).scalar_subquery()
        )
        found["policy.places"] = or_(SHARE * Gpu.places > PERMILLE, taken >= Gpu.places)
    return found


@lru_cache(maxsize=SHAPES)
def obstacles(shape: Shape) -> Mapping[str, ColumnElement[bool]]:
    """Returns the obstacles that a GPU may have, by reason. None of them is NULL, so each can be negated.

    PostgreSQL evaluates an EXISTS once for all GPUs or once per GPU, depending on their number.
    """
    found: dict[str, ColumnElement[bool]] = {}
    if shape.on_host:
        found["host.other"] = Gpu.host_id != bindparam("on_host", type_=Uuid())
    if shape.labels:
        found["labels.other"] = or_(*(_lacks(key, value) for key, value in _selected(shape)))
    return (
        found
        | {"policy.other": Gpu.policy != literal(shape.policy.value, String()), "workload.other": ~serves(shape)}
        | shape.ties.obstacles()
        | {
            "host.fenced": Host.fenced_at.is_not(None),
            "host.draining": func.coalesce(Host.cordoned_for, "") == "draining",
            "host.maintenance": func.coalesce(Host.cordoned_for, "") == "maintenance",
            "host.cordoned": Host.state != "ready",
            "host.offline": or_(
                HostReport.reported_at.is_(None),
                HostReport.reported_at < bindparam("heard_since", type_=Instant()),
                Host.enrolled_at.is_(None),
                Host.enroll_hash.is_not(None),
            ),
            "host.unconfirmed": ~Host.epoch_confirmed,
            # Reports do not say which GPU an unknown slice is on, so each GPU of the host may have less free than is
            # counted.
            "gpu.unknown_slices": HostReport.unknown_slices > 0,
            "gpu.absent": ~Gpu.present,
            **({} if shape.process else {"type.none": _no_type()}),
            **unlike(shape),
            "share.full": ~share_free(shape),
            **({"reserve.full": ~reserve_free(shape)} if shape.latency else {}),
            # A sufficient type has at least as much memory as the claim, so types are looked up only if that much is
            # free.
            "memory.full": or_(
                Gpu.mem_used + MEM > Gpu.mem_bytes,
                Gpu.mem_used + func.coalesce(type_mem_bytes(shape), 0) > Gpu.mem_bytes,
            ),
        }
    )


def _no_type() -> ColumnElement[bool]:
    return ~exists().where(GpuType.gpu_id == Gpu.id, GpuType.mem_bytes >= MEM).correlate(Gpu)


def census(
    session: Session, wanted: Wanted, *, futile: bool = False, held: ColumnElement[bool] | None = None
) -> tuple[int, list[Reason]]:
    """Returns on how many GPUs `wanted` fits, and the obstacles on the others. Reads all GPUs: not for every claim.

    `futile`: the claim fails even where there is room. `held`: a condition that is true of GPUs with a place reserved
    for the claim, which therefore fit.
    """
    found: Mapping[str, ColumnElement[bool]] = obstacles(wanted.shape)
    if wanted.discreet:
        found = _discreet(found, futile=futile)
    fits = [] if held is None or futile else [(held, _FITS)]
    codes = list(DETAILS)
    numbers: dict[str, ColumnElement[int]] = {reason: literal_column(str(codes.index(reason))) for reason in found}
    why = case(*fits, *((condition, numbers[reason]) for reason, condition in found.items()), else_=_FITS).label("why")
    looked_at = (
        select(why)
        .select_from(Gpu)
        .join(Host, Host.id == Gpu.host_id)
        .join(HostReport, HostReport.host_id == Host.id)
        .subquery()
    )
    counts: dict[int, int] = dict(
        session.execute(
            select(looked_at.c.why, func.count()).group_by(looked_at.c.why), parameters(session, wanted)
        ).all()
    )
    reasons = [
        Reason(code=reason, detail=detail, count=counts[number])
        for number, (reason, detail) in enumerate(DETAILS.items())
        if number in counts
    ]
    return counts.get(-1, 0), reasons


def in_words(wanted: Wanted, reasons: Sequence[Reason]) -> str:
    """Returns a sentence on why `wanted` fits nowhere, and what to do, from the result of `census`."""
    mem_mib = f"{wanted.mem_bytes / (1 << 20):.1f}".removesuffix(".0")
    room = f"{wanted.share_permille} permille and {mem_mib} MiB free"
    if not reasons:
        return f"no GPU has {room}; no host has reported one yet, so enrol a host"
    asked_for: Sequence[Reason] = [reason for reason in reasons if reason.code not in NAMED]
    others_do = wanted.discreet and len(asked_for) < len(reasons)  # the named hosts and labels were checked last
    if not wanted.discreet:  # they were checked first, so the other reasons are those of GPUs that match them
        asked_for = asked_for or reasons[-1:]
        if asked_for[0].code == "host.other":
            return (
                "the host that is asked for has reported no GPU yet; make sure that its agent runs, or ask for another"
            )
    which, elsewhere = "no GPU", "add a host"
    if len(asked_for) < len(reasons):
        which, elsewhere = "no GPU that is asked for", "ask for others"
        if wanted.where_vm_is and not wanted.selector:
            which, elsewhere = "no GPU on the host of its VM", "move the VM"
    if others_do:
        return f"{which} fits, though others would; {elsewhere}"
    codes = {reason.code for reason in asked_for}
    if codes == {"type.none"}:
        return f"{which} offers {mem_mib} MiB to one slice; ask for less memory, or offer a larger class"
    advice = f"; free some, {elsewhere} or ask for less"
    if codes.issubset(ROOM):
        return f"{which} has {room}{advice}"
    if codes.isdisjoint(ROOM):
        advice = "" if which == "no GPU" else f"; {elsewhere}"
    most = max(asked_for, key=lambda reason: reason.count or 0).detail
    return f"{which} fits, mostly because: {most}{advice}"


def _discreet(found: Mapping[str, ColumnElement[bool]], *, futile: bool) -> dict[str, ColumnElement[bool]]:
    """Checks the named host and labels last, and as one obstacle.

    So a failing claim gets the same counts whether the named host and labels exist or are invented, and whether GPUs
    with them are full or out of order.
    """
    named = {reason: condition for reason, condition in found.items() if reason in NAMED}
    others = {reason: condition for reason, condition in found.items() if reason not in NAMED}
    return others | {reason: true() if futile else or_(*named.values()) for reason in list(named)[:1]}


def _least(shape: Shape) -> ColumnElement[int]:
    """Returns the least share that the claim can count on any GPU."""
    if shape.whole:
        return SHARE
    largest = select(func.max(Gpu.fair_ratio_permille)).where(Gpu.fair_ratio_permille > PERMILLE).correlate(None)
    return SHARE * PERMILLE // func.coalesce(largest.scalar_subquery(), PERMILLE)


def _selected(shape: Shape) -> Iterator[tuple[BindParameter[str], BindParameter[str]]]:
    """Yields key and value of each label that is selected."""
    for number in range(shape.labels):
        yield bindparam(f"label_{number}", type_=String()), bindparam(f"label_{number}_value", type_=String())


def _lacks(key: BindParameter[str], value: BindParameter[str]) -> ColumnElement[bool]:
    """Whether a GPU has no such label, neither its own nor its host's, or the label has another value."""
    own = exists().where(GpuLabel.gpu_id == Gpu.id, GpuLabel.key == key).correlate(Gpu)
    host = exists().where(HostLabel.host_id == Gpu.host_id, HostLabel.key == key, HostLabel.value == value)
    return and_(~own.where(GpuLabel.value == value), or_(own, ~host.correlate(Gpu)))


def known_anywhere(shape: Shape) -> Iterator[ColumnElement[bool]]:
    """Yields conditions that are the same for all GPUs: some GPU has a sufficient type, and each label exists."""
    if not shape.process:
        yield exists().where(GpuType.mem_bytes >= MEM).correlate(None)
    for key, value in _selected(shape):
        yield or_(
            exists().where(HostLabel.key == key, HostLabel.value == value).correlate(None),
            exists().where(GpuLabel.key == key, GpuLabel.value == value).correlate(None),
        )


def has_labels(shape: Shape) -> Iterator[ColumnElement[bool]]:
    """Yields a condition for each selected label, for statements that check one GPU at a time until enough match.

    PostgreSQL estimates that few rows equal a value, and would then read all rows instead of walking in order. It also
    estimates that few rows are NULL, so the condition is written as IS NOT NULL.
    """
    for key, value in _selected(shape):
        yield select(true()).where(gpus_label(key) == value).correlate(Gpu).scalar_subquery().is_not(None)
