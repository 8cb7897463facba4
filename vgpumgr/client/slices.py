# SPDX-License-Identifier: Apache-2.0
"""Claims and reservations."""

from collections.abc import Iterator
from uuid import UUID

from vgpumgr.client.calls import Calls, trial
from vgpumgr.client.transport import Match
from vgpumgr.errors import ApiError
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import (
    Explanation,
    Reservation,
    ReservationCreate,
    Slice,
    SliceBatch,
    SliceCreate,
    SliceMove,
    Slices,
    SliceState,
)


class SliceCalls(Calls):
    """Part of Client."""

    def slices(
        self,
        *,
        tenant: str | None = None,
        host: str | None = None,
        vm_uuid: UUID | None = None,
        state: str | None = None,
        profile: str | None = None,
        gpu_id: UUID | None = None,
    ) -> Iterator[Slice]:
        ids = {"vm_uuid": None if vm_uuid is None else str(vm_uuid), "gpu_id": None if gpu_id is None else str(gpu_id)}
        return self._pages("/v1/slices", Slice, tenant=tenant, host=host, state=state, profile=profile, **ids)

    def slice(self, slice_id: UUID) -> Slice:
        return self._get(f"/v1/slices/{slice_id}", Slice)

    def create_slice(
        self, claim: SliceCreate, *, idempotency_key: str | None = None, validate_only: bool = False
    ) -> Slice:
        """Claim a slice. `validate_only`: return the result that the claim would have, and store nothing."""
        return self._post("/v1/slices", Slice, claim, idempotency_key=idempotency_key, params=trial(validate_only))

    def create_slices(
        self, batch: SliceBatch, *, idempotency_key: str | None = None, validate_only: bool = False
    ) -> list[Slice]:
        """Claim several slices of one tenant, either all or none."""
        return self._post(
            "/v1/slices:batch", Slices, batch, idempotency_key=idempotency_key, params=trial(validate_only)
        ).slices

    def explain_slice(self, claim: SliceCreate) -> Explanation:
        """Return what a claim would result in, and why GPUs are ruled out."""
        return self._post("/v1/slices:explain", Explanation, claim)

    def move_slice(
        self,
        slice_id: UUID,
        move: SliceMove,
        *,
        if_match: Match | None = None,
        idempotency_key: str | None = None,
        validate_only: bool = False,
    ) -> Slice:
        """Claim a slice on another host in place of this one."""
        options = {"if_match": if_match, "idempotency_key": idempotency_key, "params": trial(validate_only)}
        return self._post(f"/v1/slices/{slice_id}:move", Slice, move, **options)

    def abort_move(self, slice_id: UUID, *, if_match: Match | None = None, validate_only: bool = False) -> Slice:
        """Give up a slice that was to replace another slice; return the other slice."""
        path, params = f"/v1/slices/{slice_id}:abort-move", trial(validate_only)
        return self._post(path, Slice, if_match=if_match, params=params, repeatable=False)

    def delete_slice(
        self, slice_id: UUID, *, if_match: Match | None = None, validate_only: bool = False
    ) -> Slice | None:
        """Delete a slice. It is returned as ``releasing``, and disappears once its host has confirmed.

        None: an earlier attempt, whose answer was lost, has already deleted the slice.
        """
        path, params = f"/v1/slices/{slice_id}", trial(validate_only)
        try:
            return self._api.demand("DELETE", path, Slice, if_match=if_match, params=params)
        except ApiError as error:
            if validate_only or not error.repeated:
                raise
            if error.code == Code.OBJECT_UNKNOWN:
                return None
            if error.code != Code.GENERATION_STALE:
                raise
            # An earlier attempt, whose answer was lost, may have changed the generation.
            found = self._left_of(slice_id)
            if found is not None and found.state is not SliceState.RELEASING:
                raise
            return found

    def _left_of(self, slice_id: UUID) -> Slice | None:
        try:
            return self.slice(slice_id)
        except ApiError as error:
            if error.code == Code.OBJECT_UNKNOWN:
                return None
            raise

    def reservations(self, *, tenant: str | None = None, profile: str | None = None) -> Iterator[Reservation]:
        return self._pages("/v1/reservations", Reservation, tenant=tenant, profile=profile)

    def reservation(self, reservation_id: UUID) -> Reservation:
        return self._get(f"/v1/reservations/{reservation_id}", Reservation)

    def create_reservation(
        self, reservation: ReservationCreate, *, idempotency_key: str | None = None, validate_only: bool = False
    ) -> Reservation:
        return self._post(
            "/v1/reservations", Reservation, reservation, idempotency_key=idempotency_key, params=trial(validate_only)
        )

    def delete_reservation(
        self, reservation_id: UUID, *, if_match: Match | None = None, validate_only: bool = False
    ) -> None:
        """Release the places that are still held. Slices that took places stay."""
        self._delete(f"/v1/reservations/{reservation_id}", if_match, validate_only=validate_only)
