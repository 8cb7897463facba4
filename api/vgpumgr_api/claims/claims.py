# SPDX-License-Identifier: Apache-2.0
"""Claims: giving a slice to a tenant, and beginning its release."""

from collections.abc import Sequence
from uuid import UUID, uuid4

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Mode, Page
from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.resources import Slice, SliceBatch, SliceCreate, Slices, SliceState
from vgpumgr_api.actors import Actor, reachable_tenants, require_change, require_tenant, unknown
from vgpumgr_api.claims import claim_rows, progress, reservations
from vgpumgr_api.claims.slice_view import answer, seen, view, views
from vgpumgr_api.claims.workloads import require_sense
from vgpumgr_api.db import models
from vgpumgr_api.db.database import now
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import events
from vgpumgr_api.placement.obstacles import Wanted, policy_of, settled
from vgpumgr_api.placement.placement import Place, take
from vgpumgr_api.placement.ties import Vm, ties_of
from vgpumgr_api.resources import idempotency
from vgpumgr_api.resources.generations import IfMatch, bump, bump_claimed, refuse_other
from vgpumgr_api.resources.idempotency import Begun, Once
from vgpumgr_api.resources.lookup import (
    Claiming,
    claiming,
    host_of,
    host_wanted,
    named_by,
    on_host,
    profile_named,
    tenant_named,
)
from vgpumgr_api.resources.paging import PageRequest, fetch
from vgpumgr_api.tenancy import quotas
from vgpumgr_api.tenancy.enforcement import Timeslice
from vgpumgr_api.tenancy.quota_rules import Asked
from vgpumgr_api.tenancy.quotas import Standing
from vgpumgr_api.usage import grants


def create_slice(
    session: Session,
    actor: Actor,
    request: SliceCreate,
    *,
    validate_only: bool = False,
    once: Once | None = None,
) -> Slice:
    """Claims a slice: charges the quotas and a GPU and writes the claim in one transaction, or changes nothing.

    A VM that already has a slice of the tenant gets further slices on the same host, unless `host` names another.
    `validate_only` does everything, returns the answer, and rolls back. With `once`, a repeated request gets the first
    answer, like with `idempotency.once`; the answer is stored together with the claim's rows.
    """
    if once is not None:
        begun = idempotency.begin(session, actor, once, Slice)
        if not isinstance(begun, Begun):
            return begun
        require_change(actor)
        return _claim(session, actor, [request], begun)[0]
    return _tried_or_done(session, actor, [request], validate_only=validate_only)[0]


def create_slices(session: Session, actor: Actor, batch: SliceBatch, *, validate_only: bool = False) -> Slices:
    """Claims several slices of one tenant like `create_slice`, all or none. Quotas are charged the sum."""
    tenant = batch.slices[0].tenant
    others = [number for number, request in enumerate(batch.slices) if request.tenant != tenant]
    if others:
        detail = "the slices of a batch must be of one tenant; send those of others separately"
        reasons = [Reason(code=Code.FIELD_INVALID, detail=detail, field=f"$.slices[{each}].tenant") for each in others]
        raise Refusal(Code.FIELD_INVALID, detail, reasons=tuple(reasons))
    return Slices(slices=_tried_or_done(session, actor, batch.slices, validate_only=validate_only, batch=True))


def list_slices(
    session: Session,
    actor: Actor,
    page: PageRequest,
    *,
    tenant: str | None = None,
    host: str | None = None,
    vm_uuid: UUID | None = None,
    state: SliceState | None = None,
    profile: str | None = None,
    gpu_id: UUID | None = None,
) -> Page[Slice]:
    """Returns the slices of tenants that `actor` reaches, by id. `tenant` selects that tenant, without its projects."""
    statement = views().where(reachable_tenants(actor))
    if tenant is not None:
        owner = tenant_named(session, tenant)
        require_tenant(actor, owner)
        statement = statement.where(models.Slice.tenant_id == owner.id)
    if host is not None:
        statement = statement.where(on_host(session, actor, host))
    if vm_uuid is not None:
        statement = statement.where(models.Slice.vm_uuid == vm_uuid)
    if state is not None:
        statement = statement.where(progress.state_of_row() == state.value)
    if profile is not None:
        statement = statement.where(models.Slice.profile_id == profile_named(session, profile).id)
    if gpu_id is not None:
        statement = statement.where(models.Slice.gpu_id == gpu_id)
    rows, token = fetch(session, statement, kind="slices", keys=[models.Slice.id], page=page)
    return Page(items=[answer(view(row)) for row in rows], next_page_token=token)


def get_slice(session: Session, actor: Actor, slice_id: UUID) -> Slice:
    """Returns one slice."""
    row = session.execute(views().where(models.Slice.id == slice_id, reachable_tenants(actor))).one_or_none()
    if row is None:
        raise unknown("slice", slice_id)
    return answer(view(row))


def delete_slice(session: Session, actor: Actor, slice_id: UUID, *, if_match: IfMatch) -> Slice:
    """Turns a claim into a tombstone. Quota and capacity return when the host has confirmed that the device is gone.

    Repeating this changes nothing. Deleting a lost slice changes nothing either, because it is a tombstone already.
    """
    require_change(actor)
    claim, host_id, tenant = _locked(session, actor, slice_id)
    refuse_other(session, if_match, claim.id, claim.generation)
    if claim.state == SliceState.CLAIMED.value:
        progress.begin_release(session, claim.id)
        bump(session, [host_id])
        claim.tombstone_generation = session.scalars(
            select(models.Host.desired_generation).where(models.Host.id == host_id)
        ).one()
        claim.state = SliceState.RELEASING.value
        claim.generation += 1
        grants.deleted(session, claim.id)
        events.record(session, actor, "slice.releasing", claim.id, tenant=tenant, generation=claim.generation)
        session.flush()
    return get_slice(session, actor, slice_id)


def wanted_of(
    session: Session, actor: Actor, tenant: models.Tenant, profile: models.Profile, request: SliceCreate
) -> Wanted:
    """Returns what a claim currently needs of a GPU. The caller holds the lock of the tenant's quota."""
    host_id = host_wanted(session, actor, request.host)
    return Wanted(
        share_permille=profile.share_permille,
        mem_bytes=profile.mem_bytes,
        mode=Mode(profile.mode),
        host_id=host_id,
        vm=Vm(tenant.id, request.vm_uuid) if host_id is None and request.vm_uuid is not None else None,
        placement=request.placement,
        selector=request.selector,
        ties=ties_of(session, tenant.id, request),
        policy=policy_of(profile),
        reserve_period_us=profile.reserve_period_us,
        discreet=not actor.sees_the_cloud,
        workload=request.workload,
    )


def _tried_or_done(
    session: Session, actor: Actor, requests: Sequence[SliceCreate], *, validate_only: bool, batch: bool = False
) -> list[Slice]:
    require_change(actor)
    if not validate_only:
        return _claim(session, actor, requests, batch=batch)
    with session.begin_nested() as trial:
        claimed = _claim(session, actor, requests, batch=batch)
        trial.rollback()
    return claimed


def _claim(
    session: Session,
    actor: Actor,
    requests: Sequence[SliceCreate],
    begun: Begun | None = None,
    *,
    batch: bool = False,
) -> list[Slice]:
    bodies = [f"$.slices[{number}]" if batch else "$" for number in range(len(requests))]
    with named_by(f"{bodies[0]}.tenant"):
        who = claiming(session, actor, requests[0].tenant, requests[0].profile)
        tenant = who.tenant
        require_tenant(actor, tenant)
    profiles = [_profile(session, who, *each) for each in zip(requests, bodies, strict=True)]
    # Claims with a reservation were charged when the reservation was made.
    new = [
        Asked(profile, f"{body}.profile")
        for request, profile, body in zip(requests, profiles, bodies, strict=True)
        if request.reservation is None
    ]
    owners = quotas.owners_with(tenant, who.account)
    standings = quotas.charge_owners(session, owners, new) if new else quotas.lock_owners(session, owners)
    claimed: list[Slice] = []
    hosts: set[UUID] = set()
    for number, (asked, profile) in enumerate(zip(requests, profiles, strict=True)):
        try:
            request, place = _place(session, actor, tenant, profile, asked, first=not claimed)
        except Refusal as refusal:
            raise (_in_batch(refusal, number, len(requests)) if batch else refusal) from None
        claim = new_claim(session, tenant, profile, request, place)
        made = _answer(claim, who, profile, place, standings)
        kept = None if begun is None else begun.parameters(made)
        claim_rows.write(session, actor, claim, who, profile.name, place, bump=len(requests) == 1, kept=kept)
        hosts.add(place.host_id)
        claimed.append(made)
    if len(requests) > 1:  # only once all GPUs are locked: hosts come later in the lock order
        bump_claimed(session, hosts)
    return claimed


def _profile(session: Session, who: Claiming, request: SliceCreate, body: str) -> models.Profile:
    if who.profile is not None and who.profile.name == request.profile:
        return who.profile
    with named_by(f"{body}.profile"):
        return profile_named(session, request.profile)


def _place(
    session: Session, actor: Actor, tenant: models.Tenant, profile: models.Profile, asked: SliceCreate, *, first: bool
) -> tuple[SliceCreate, Place]:
    """Returns the claim, with the ties of its reservation if it names one, and its place."""
    require_sense(asked)
    request = reservations.with_ties(session, tenant, asked)
    wanted = wanted_of(session, actor, tenant, profile, request)
    if request.reservation is None:
        return request, take(session, wanted, first=first)
    return request, reservations.draw(session, tenant, profile, settled(session, wanted), request)


def _in_batch(refusal: Refusal, number: int, count: int) -> Refusal:
    """Returns the refusal with the number of the claim in its batch."""

    def told(reason: Reason) -> Reason:
        if not reason.field.startswith("$."):
            return reason
        return reason.model_copy(update={"field": f"$.slices[{number}]{reason.field[1:]}"})

    return Refusal(
        refusal.code,
        f"slices[{number}] of {count}: {refusal.detail}",
        reasons=tuple(told(reason) for reason in refusal.reasons),
        limits=refusal.limits,
        retry_after_s=refusal.retry_after_s,
        by=refusal.by,
    )


def _answer(
    claim: models.Slice,
    who: Claiming,
    profile: models.Profile,
    place: Place,
    standings: Sequence[Standing],
) -> Slice:
    """Returns the slice just claimed, as clients see it. The last of `standings` is its tenant's."""
    return answer(
        seen(
            claim,
            place.gpu,
            tenant=who.tenant.name,
            profile=profile.name,
            host=place.host,
            timeslice=Timeslice(us=standings[-1].timeslice_us, max_us=min(each.timeslice_max_us for each in standings)),
            owners=[each.use for each in standings],
        )
    )


def new_claim(
    session: Session, tenant: models.Tenant, profile: models.Profile, request: SliceCreate, place: Place
) -> models.Slice:
    """Returns a claim on the place taken. The object belongs to no session; see `claim_rows`."""
    affinity, anti_affinity = request.affinity, request.anti_affinity
    return models.Slice(
        id=uuid4(),
        tenant_id=tenant.id,
        profile_id=profile.id,
        gpu_id=place.gpu.id,
        vm_uuid=request.vm_uuid,
        share_permille=profile.share_permille,
        mem_bytes=profile.mem_bytes,
        mode=profile.mode,
        mdev_type=place.mdev_type,
        type_mem_bytes=place.type_mem_bytes,
        fair_ratio_permille=place.fair_ratio_permille,
        band=profile.band,
        reserve_period_us=profile.reserve_period_us,
        reserved_permille=place.reserved_permille,
        affinity=affinity and affinity.key,
        affinity_level=affinity and affinity.level.value,
        anti_affinity=anti_affinity and anti_affinity.key,
        anti_affinity_level=anti_affinity and anti_affinity.level.value,
        workload=request.workload.value,
        state=SliceState.CLAIMED.value,
        tombstone_generation=None,
        generation=1,
        created_at=now(session),
        moved_from=None,
        moved_from_host_id=None,
        moving=False,
    )


def _locked(session: Session, actor: Actor, slice_id: UUID) -> tuple[models.Slice, UUID, models.Tenant]:
    row = session.execute(
        select(models.Slice, models.Tenant)
        .join(models.Tenant, models.Tenant.id == models.Slice.tenant_id)
        .where(models.Slice.id == slice_id, reachable_tenants(actor))
        .with_for_update(of=models.Slice)
    ).one_or_none()
    if row is None:
        raise unknown("slice", slice_id)
    return row[0], host_of(session, row[0]), row[1]
