# SPDX-License-Identifier: Apache-2.0
"""Slices: claims, and their hosts' observations."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from vgpumgr.wire.common import Name, Page
from vgpumgr.wire.resources import Explanation, Slice, SliceBatch, SliceCreate, SliceMove, Slices, SliceState
from vgpumgr_api.claims import claims, explain, moves
from vgpumgr_api.edge.call import CallDep, Flag, IdempotencyKey, IfMatch, PageDep, TrialDep
from vgpumgr_api.edge.expired import despite_expired, give_expired_back
from vgpumgr_api.edge.strict import ConfirmedRoute, ReadingRoute, Route

router = APIRouter(prefix="/v1/slices", tags=["slices"], route_class=Route)
claims_router = APIRouter(prefix="/v1/slices", tags=["slices"], route_class=ConfirmedRoute)
explain_router = APIRouter(prefix="/v1/slices", tags=["slices"], route_class=ReadingRoute)

ValidateOnly = Annotated[Flag, Query(description="check and answer as usual, but claim nothing")]


@router.get("")
def list_slices(
    call: CallDep,
    page: PageDep,
    tenant: Name | None = None,
    host: Name | None = None,
    vm_uuid: UUID | None = None,
    state: SliceState | None = None,
    profile: Name | None = None,
    gpu_id: UUID | None = None,
) -> Page[Slice]:
    """Lists the slices that the caller may see, filtered by tenant, host, VM, state, profile or GPU."""
    wanted = {"tenant": tenant, "host": host, "profile": profile}
    return call.read(claims.list_slices, page, **wanted, vm_uuid=vm_uuid, state=state, gpu_id=gpu_id)


@claims_router.post(
    "", status_code=201, responses={200: {"description": "With validate_only: what would be claimed", "model": Slice}}
)
def create_slice(
    call: CallDep,
    wanted: SliceCreate,
    idempotency_key: IdempotencyKey = None,
    validate_only: ValidateOnly = False,
) -> Slice:
    """Claims a slice: charges the quota and chooses a GPU, or does neither."""
    if validate_only:
        call.response.status_code = 200
        return despite_expired(call, lambda: call.write(claims.create_slice, wanted, validate_only=True))
    once = None if idempotency_key is None else call.once(idempotency_key, wanted)
    claimed = despite_expired(call, lambda: call.write(claims.create_slice, wanted, once=once))
    call.located(f"/v1/slices/{claimed.id}")
    call.tag(claimed.id, claimed.generation)
    return claimed


@claims_router.post(
    ":batch",
    status_code=201,
    responses={200: {"description": "With validate_only: what would be claimed", "model": Slices}},
)
def create_slices(
    call: CallDep,
    wanted: SliceBatch,
    idempotency_key: IdempotencyKey = None,
    validate_only: ValidateOnly = False,
) -> Slices:
    """Claims several slices of one tenant, all or none."""
    call.request.state.asked = len(wanted.slices)
    if validate_only:
        call.response.status_code = 200
        return despite_expired(call, lambda: call.write(claims.create_slices, wanted, validate_only=True))
    return despite_expired(call, lambda: call.write_once(idempotency_key, claims.create_slices, wanted, kind=Slices))


@explain_router.post(":explain")
def explain_slice(call: CallDep, wanted: SliceCreate) -> Explanation:
    """Says whether a claim would succeed, and how many GPUs each obstacle rules out. Claims nothing."""
    said = call.read(explain.explain, wanted)
    return said if said.fits or not give_expired_back(call) else call.read(explain.explain, wanted)


@router.get("/{slice_id}")
def get_slice(call: CallDep, slice_id: UUID) -> Slice:
    """Returns a slice."""
    found = call.read(claims.get_slice, slice_id)
    call.tag(found.id, found.generation)
    return found


@router.delete(
    "/{slice_id}",
    status_code=202,
    responses={200: {"description": "With validate_only: what it would become", "model": Slice}},
)
def delete_slice(call: TrialDep, slice_id: UUID, if_match: IfMatch) -> Slice:
    """Releases a slice. Its quota and capacity return once its host has confirmed that the device is gone."""
    releasing = call.write(claims.delete_slice, slice_id, if_match=if_match)
    call.tag(releasing.id, releasing.generation)
    return releasing


@router.post(
    "/{slice_id}:move",
    status_code=201,
    responses={200: {"description": "With validate_only: what would replace it", "model": Slice}},
)
def move_slice(
    call: TrialDep, slice_id: UUID, wanted: SliceMove, if_match: IfMatch, idempotency_key: IdempotencyKey = None
) -> Slice:
    """Moves the slice of a stopped VM: claims a replacement on another host without a second charge.

    The answer is the new slice, whose id goes into the domain's XML on the new host. The old slice becomes `lost`.
    """
    moved = despite_expired(
        call,
        lambda: call.write_once(
            idempotency_key,
            lambda session, actor, body: moves.move_slice(session, actor, slice_id, body, if_match=if_match),
            wanted,
            kind=Slice,
        ),
    )
    call.located(f"/v1/slices/{moved.id}")
    call.tag(moved.id, moved.generation)
    return moved


@router.post("/{slice_id}:abort-move")
def abort_move(call: TrialDep, slice_id: UUID, if_match: IfMatch) -> Slice:
    """Aborts a move: releases the new slice and restores the old one. Refused once a VM may start with the new one."""
    kept = call.write(moves.abort_move, slice_id, if_match=if_match)
    call.tag(kept.id, kept.generation)
    return kept
