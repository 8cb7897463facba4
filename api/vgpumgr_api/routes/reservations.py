# SPDX-License-Identifier: Apache-2.0
"""Reservations: capacity reserved for future claims."""

from uuid import UUID

from fastapi import APIRouter

from vgpumgr.wire.common import Name, Page
from vgpumgr.wire.resources import Reservation, ReservationCreate
from vgpumgr_api.claims import reservations
from vgpumgr_api.edge.call import CallDep, IdempotencyKey, IfMatch, PageDep, TrialDep
from vgpumgr_api.edge.expired import despite_expired
from vgpumgr_api.edge.strict import Route

router = APIRouter(prefix="/v1/reservations", tags=["reservations"], route_class=Route)


@router.get("")
def list_reservations(
    call: CallDep, page: PageDep, tenant: Name | None = None, profile: Name | None = None
) -> Page[Reservation]:
    """Lists unexpired reservations of tenants that the caller may see, filtered by tenant or profile."""
    return call.read(reservations.list_reservations, page, tenant=tenant, profile=profile)


@router.post(
    "",
    status_code=201,
    responses={200: {"description": "With validate_only: what would be reserved", "model": Reservation}},
)
def create_reservation(
    call: TrialDep, wanted: ReservationCreate, idempotency_key: IdempotencyKey = None
) -> Reservation:
    """Reserves quota and places on GPUs for a time, all or none. Claims take places by naming the reservation."""
    call.request.state.asked = wanted.places
    made = despite_expired(
        call, lambda: call.write_once(idempotency_key, reservations.create_reservation, wanted, kind=Reservation)
    )
    call.located(f"/v1/reservations/{made.id}")
    call.tag(made.id, made.generation)
    return made


@router.get("/{reservation_id}")
def get_reservation(call: CallDep, reservation_id: UUID) -> Reservation:
    """Returns an unexpired reservation."""
    found = call.read(reservations.get_reservation, reservation_id)
    call.tag(found.id, found.generation)
    return found


@router.delete("/{reservation_id}", status_code=204)
def delete_reservation(call: TrialDep, reservation_id: UUID, if_match: IfMatch) -> None:
    """Deletes a reservation and frees what is left of it. Slices that took places stay."""
    call.write(reservations.delete_reservation, reservation_id, if_match=if_match)
