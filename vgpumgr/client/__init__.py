# SPDX-License-Identifier: Apache-2.0
"""The API as Python calls, for the CLI and the host agent. One method for each route, typed with the wire models.

Lists are read page by page as they are used. Everything raises ApiError, ApiUnreachableError or ApiAnswerError, and
ArgumentError for a name that cannot be one. Threads may share a client.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from vgpumgr.client.transport import PAUSES_S, Transport, segment
from vgpumgr.client.watch import follow
from vgpumgr.wire.audit import AuditEntry
from vgpumgr.wire.common import Page
from vgpumgr.wire.fleet import (
    Bind,
    CertificateRequest,
    Desired,
    Enroll,
    Enrolled,
    Heartbeat,
    HeartbeatTaken,
    HostCertificate,
    Report,
    Reported,
)
from vgpumgr.wire.operations import HostDrain, Operation, OperationCancel
from vgpumgr.wire.resources import (
    Event,
    Explanation,
    Gpu,
    GpuPatch,
    Host,
    HostCreate,
    HostCreated,
    HostFence,
    HostPatch,
    Profile,
    ProfileCreate,
    Quota,
    QuotaPatch,
    Reservation,
    ReservationCreate,
    Slice,
    SliceBatch,
    SliceCreate,
    Slices,
    Tenant,
    TenantCreate,
    Token,
    TokenCreate,
    TokenCreated,
    Usage,
)
from vgpumgr.wire.usage import Grant, LedgerRow, Metered, Readings

if TYPE_CHECKING:
    import httpx2

__all__ = ["Client"]

PAGE_SIZE = 1000
EXPORT_SILENCE_S = 60.0
WAIT_MARGIN_S = 15.0
"""How much longer than a long poll's own time its answer may take."""

Item = TypeVar("Item", bound=BaseModel)


class Loose(BaseModel):
    """A JSON object of any form."""

    model_config = ConfigDict(extra="allow", frozen=True)


def _trial(validate_only: bool) -> Mapping[str, str]:
    return {"validate_only": "true"} if validate_only else {}


class Client:
    """`token` None: only `versions` and `health`, which need none, or with a certificate. `timeout_s`: of one attempt.

    `certificate_file`: PEM, key and certificate of a host's agent, shown to an API behind ``https://``.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        ca_file: str | None = None,
        timeout_s: float = 30.0,
        *,
        certificate_file: str | None = None,
        transport: "httpx2.BaseTransport | None" = None,
        sleep: Callable[[float], None] = time.sleep,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._api = Transport(
            url,
            token,
            ca_file=ca_file,
            certificate_file=certificate_file,
            timeout_s=timeout_s,
            transport=transport,
            sleep=sleep,
            pauses_s=pauses_s,
        )

    def __repr__(self) -> str:
        return f"Client({self._api.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where the API is."""
        return self._api.url

    def close(self) -> None:
        """Give the connections back."""
        self._api.close()

    def _pages(self, path: str, kind: type[Item], /, **filters: str | int | None) -> Iterator[Item]:
        token: str | None = None
        while True:
            params = {"page_size": PAGE_SIZE, "page_token": token, **filters}
            page = self._api.demand("GET", path, Page[kind], params=params)  # type: ignore[valid-type]
            yield from page.items
            # An API that names the same page again would be asked for ever.
            if not page.next_page_token or page.next_page_token == token:
                return
            token = page.next_page_token

    def _get(self, path: str, kind: type[Item]) -> Item:
        return self._api.demand("GET", path, kind)

    def _post(self, path: str, kind: type[Item], body: BaseModel | None = None, **options: Any) -> Item:
        return self._api.demand("POST", path, kind, body=body, **options)

    def _patch(self, path: str, kind: type[Item], patch: BaseModel, if_generation: int, *, validate_only: bool) -> Item:
        params = _trial(validate_only)
        return self._api.demand(
            "PATCH", path, kind, body=patch, if_generation=if_generation, params=params, repeatable=False
        )

    def _delete(self, path: str, if_generation: int | None, *, validate_only: bool) -> None:
        self._api.call("DELETE", path, Loose, if_generation=if_generation, params=_trial(validate_only))

    # ---- tenants and quotas

    def tenants(self) -> Iterator[Tenant]:
        return self._pages("/v1/tenants", Tenant)

    def tenant(self, name: str) -> Tenant:
        return self._get(f"/v1/tenants/{segment(name)}", Tenant)

    def create_tenant(self, tenant: TenantCreate, *, validate_only: bool = False) -> Tenant:
        return self._post("/v1/tenants", Tenant, tenant, params=_trial(validate_only))

    def delete_tenant(self, name: str, *, if_generation: int | None = None, validate_only: bool = False) -> None:
        self._delete(f"/v1/tenants/{segment(name)}", if_generation, validate_only=validate_only)

    def quotas(self) -> Iterator[Quota]:
        return self._pages("/v1/quotas", Quota)

    def quota(self, tenant: str) -> Quota:
        return self._get(f"/v1/quotas/{segment(tenant)}", Quota)

    def patch_quota(self, tenant: str, patch: QuotaPatch, *, if_generation: int, validate_only: bool = False) -> Quota:
        path = f"/v1/quotas/{segment(tenant)}"
        return self._patch(path, Quota, patch, if_generation, validate_only=validate_only)

    # ---- profiles

    def profiles(self) -> Iterator[Profile]:
        return self._pages("/v1/profiles", Profile)

    def profile(self, name: str) -> Profile:
        return self._get(f"/v1/profiles/{segment(name)}", Profile)

    def create_profile(self, profile: ProfileCreate, *, validate_only: bool = False) -> Profile:
        return self._post("/v1/profiles", Profile, profile, params=_trial(validate_only))

    def delete_profile(self, name: str, *, if_generation: int, validate_only: bool = False) -> None:
        self._delete(f"/v1/profiles/{segment(name)}", if_generation, validate_only=validate_only)

    # ---- hosts and GPUs

    def hosts(self) -> Iterator[Host]:
        return self._pages("/v1/hosts", Host)

    def host(self, name: str) -> Host:
        return self._get(f"/v1/hosts/{segment(name)}", Host)

    def create_host(self, host: HostCreate) -> HostCreated:
        # The API keeps no secret to answer it again, so this and what else answers one is not repeated.
        return self._post("/v1/hosts", HostCreated, host, repeatable=False)

    def patch_host(self, name: str, patch: HostPatch, *, if_generation: int, validate_only: bool = False) -> Host:
        return self._patch(f"/v1/hosts/{segment(name)}", Host, patch, if_generation, validate_only=validate_only)

    def delete_host(self, name: str, *, if_generation: int, validate_only: bool = False) -> None:
        self._delete(f"/v1/hosts/{segment(name)}", if_generation, validate_only=validate_only)

    def confirm_epoch(self, name: str, *, validate_only: bool = False) -> Host:
        return self._post(f"/v1/hosts/{segment(name)}:confirm-epoch", Host, params=_trial(validate_only))

    def cordon(self, name: str, *, if_generation: int) -> Host:
        return self._host_action(name, "cordon", if_generation)

    def uncordon(self, name: str, *, if_generation: int) -> Host:
        return self._host_action(name, "uncordon", if_generation)

    def maintenance(self, name: str, *, if_generation: int) -> Host:
        return self._host_action(name, "maintenance", if_generation)

    def _host_action(self, name: str, verb: str, generation: int) -> Host:
        path = f"/v1/hosts/{segment(name)}:{verb}"
        return self._post(path, Host, if_generation=generation, repeatable=False)

    def drain_host(self, name: str, drain: HostDrain, *, if_generation: int) -> Operation:
        return self._post(f"/v1/hosts/{segment(name)}:drain", Operation, drain, if_generation=if_generation)

    def fence(self, name: str, fence: HostFence, *, if_generation: int, validate_only: bool = False) -> Host:
        path, params = f"/v1/hosts/{segment(name)}:fence", _trial(validate_only)
        return self._post(path, Host, fence, if_generation=if_generation, params=params, repeatable=False)

    def reenroll(self, name: str) -> HostCreated:
        return self._post(f"/v1/hosts/{segment(name)}:reenroll", HostCreated, repeatable=False)

    def gpus(self, *, host: str | None = None) -> Iterator[Gpu]:
        return self._pages("/v1/gpus", Gpu, host=host)

    def gpu(self, gpu_id: UUID) -> Gpu:
        return self._get(f"/v1/gpus/{gpu_id}", Gpu)

    def patch_gpu(self, gpu_id: UUID, patch: GpuPatch, *, if_generation: int, validate_only: bool = False) -> Gpu:
        return self._patch(f"/v1/gpus/{gpu_id}", Gpu, patch, if_generation, validate_only=validate_only)

    # ---- slices

    def slices(
        self,
        *,
        tenant: str | None = None,
        host: str | None = None,
        vm_uuid: UUID | None = None,
        state: str | None = None,
    ) -> Iterator[Slice]:
        vm = None if vm_uuid is None else str(vm_uuid)
        return self._pages("/v1/slices", Slice, tenant=tenant, host=host, vm_uuid=vm, state=state)

    def slice(self, slice_id: UUID) -> Slice:
        return self._get(f"/v1/slices/{slice_id}", Slice)

    def create_slice(self, claim: SliceCreate, *, validate_only: bool = False) -> Slice:
        """Claim a slice. `validate_only`: say what would come of it and store nothing."""
        return self._post("/v1/slices", Slice, claim, params=_trial(validate_only))

    def create_slices(self, batch: SliceBatch, *, validate_only: bool = False) -> list[Slice]:
        """Claim several slices of one tenant, all or none."""
        return self._post("/v1/slices:batch", Slices, batch, params=_trial(validate_only)).slices

    def explain_slice(self, claim: SliceCreate) -> Explanation:
        """Say what would come of a claim, and why GPUs are out of the question."""
        return self._post("/v1/slices:explain", Explanation, claim)

    def delete_slice(self, slice_id: UUID, *, if_generation: int | None = None, validate_only: bool = False) -> Slice:
        """Give a slice back; it is answered as ``releasing`` and goes when its host has confirmed."""
        path, params = f"/v1/slices/{slice_id}", _trial(validate_only)
        return self._api.demand("DELETE", path, Slice, if_generation=if_generation, params=params)

    # ---- operations

    def operations(
        self, *, kind: str | None = None, target: str | None = None, state: str | None = None
    ) -> Iterator[Operation]:
        return self._pages("/v1/operations", Operation, kind=kind, target=target, state=state)

    def operation(self, operation_id: UUID, *, wait_s: int = 0) -> Operation:
        """How far it is; with `wait_s` (at most 60) once it is done, or as it is after that time."""
        return self._api.demand(
            "GET",
            f"/v1/operations/{operation_id}",
            Operation,
            params={"wait_s": wait_s},
            timeout_s=wait_s + WAIT_MARGIN_S,
        )

    def cancel_operation(
        self, operation_id: UUID, cancel: OperationCancel, *, if_generation: int | None = None
    ) -> Operation:
        path = f"/v1/operations/{operation_id}:cancel"
        return self._post(path, Operation, cancel, if_generation=if_generation, repeatable=False)

    # ---- reservations

    def reservations(self, *, tenant: str | None = None) -> Iterator[Reservation]:
        return self._pages("/v1/reservations", Reservation, tenant=tenant)

    def reservation(self, reservation_id: UUID) -> Reservation:
        return self._get(f"/v1/reservations/{reservation_id}", Reservation)

    def create_reservation(self, reservation: ReservationCreate, *, validate_only: bool = False) -> Reservation:
        return self._post("/v1/reservations", Reservation, reservation, params=_trial(validate_only))

    def delete_reservation(
        self, reservation_id: UUID, *, if_generation: int | None = None, validate_only: bool = False
    ) -> None:
        """Give back what is still held; slices that took places stay."""
        self._delete(f"/v1/reservations/{reservation_id}", if_generation, validate_only=validate_only)

    # ---- tokens, events, audit, usage

    def tokens(self) -> Iterator[Token]:
        return self._pages("/v1/tokens", Token)

    def create_token(self, token: TokenCreate) -> TokenCreated:
        return self._post("/v1/tokens", TokenCreated, token, repeatable=False)

    def delete_token(self, token_id: UUID) -> None:
        self._api.call("DELETE", f"/v1/tokens/{token_id}", Loose)

    def events(self, *, after: int = 0, about: str | None = None, tenant: str | None = None) -> Iterator[Event]:
        """Events with a larger number than `after`, oldest first, up to now."""
        while True:
            params = {"after": after, "page_size": PAGE_SIZE, "about": about, "tenant": tenant}
            page = self._api.demand("GET", "/v1/events", Page[Event], params=params)
            yield from page.items
            if not page.next_page_token or not page.items or page.items[-1].seq <= after:
                return
            after = page.items[-1].seq

    def watch_events(
        self, *, after: int | None = None, about: str | None = None, tenant: str | None = None
    ) -> Iterator[Event]:
        """Events as they happen, those after `after` first, each once and in order, across lost connections."""
        return follow(self._api, {"after": after, "about": about, "tenant": tenant})

    def audit(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        object: str | None = None,  # noqa: A002  # as the API calls it
        tenant: str | None = None,
        request_id: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> Iterator[AuditEntry]:
        """Entries, oldest first. `since`, `until`: instants in ISO 8601 with a time zone."""
        filters = {"actor": actor, "action": action, "object": object, "tenant": tenant, "request_id": request_id}
        return self._pages("/v1/audit", AuditEntry, **filters, since=since, until=until)

    def usage(self, *, tenant: str | None = None, host: str | None = None) -> Iterator[Usage]:
        return self._pages("/v1/usage", Usage, tenant=tenant, host=host)

    def ledger(
        self,
        *,
        since: str,
        until: str,
        granularity: str | None = None,
        by: str | None = None,
        tenant: str | None = None,
        account: str | None = None,
        as_of: str | None = None,
    ) -> Iterator[LedgerRow]:
        """What was granted and used. `since`, `until`, `as_of`: whole hours in ISO 8601 with a time zone."""
        filters = {"granularity": granularity, "by": by, "tenant": tenant, "account": account, "as_of": as_of}
        return self._pages("/v1/usage/ledger", LedgerRow, since=since, until=until, **filters)

    def export_ledger(
        self,
        *,
        since: str,
        until: str,
        granularity: str | None = None,
        by: str | None = None,
        tenant: str | None = None,
        account: str | None = None,
        as_of: str | None = None,
    ) -> Iterator[bytes]:
        """The same as CSV, in pieces. ApiUnreachableError where it breaks off: then it is not complete."""
        params = {"since": since, "until": until, "granularity": granularity, "by": by, "tenant": tenant}
        params |= {"account": account, "as_of": as_of}
        with self._api.stream("/v1/usage/ledger.csv", params=params, headers={}, silence_s=EXPORT_SILENCE_S) as pieces:
            yield from pieces

    def grants(
        self, *, since: str, until: str, tenant: str | None = None, account: str | None = None
    ) -> Iterator[Grant]:
        """Lives of claims that fall into a time."""
        return self._pages("/v1/usage/grants", Grant, since=since, until=until, tenant=tenant, account=account)

    # ---- the API itself

    def versions(self) -> dict[str, Any]:
        return self._get("/", Loose).model_dump()

    def openapi(self) -> dict[str, Any]:
        """The document that describes this API."""
        return self._get("/openapi.json", Loose).model_dump()

    def health(self) -> dict[str, Any]:
        """ApiError or ApiUnreachableError when the API has no database."""
        return self._get("/v1/health", Loose).model_dump()

    def liveness(self) -> dict[str, Any]:
        """Whether the API's process answers, whatever its database does."""
        return self._get("/v1/health/live", Loose).model_dump()

    # ---- the host agent's routes. `host`: its id or name

    def enroll(self, enroll: Enroll) -> Enrolled:
        """With the one-time token as this client's token."""
        return self._post("/v1/enroll", Enrolled, enroll, repeatable=False)

    def renew_certificate(self, host: UUID | str, request: CertificateRequest) -> HostCertificate:
        return self._post(f"/v1/hosts/{segment(host)}/certificate", HostCertificate, request)

    def desired(
        self, host: UUID | str, *, epoch: UUID | None = None, generation: int | None = None, wait_s: int = 30
    ) -> Desired | None:
        """What the host shall have once that is not (`epoch`, `generation`); None if it still is after `wait_s`."""
        return self._api.call(
            "GET",
            f"/v1/hosts/{segment(host)}/desired",
            Desired,
            params={"epoch": None if epoch is None else str(epoch), "generation": generation, "wait_s": wait_s},
            timeout_s=wait_s + WAIT_MARGIN_S,
        )

    def report(self, host: UUID | str, report: Report) -> Reported:
        return self._post(f"/v1/hosts/{segment(host)}/report", Reported, report)

    def heartbeat(self, host: UUID | str, beat: Heartbeat) -> HeartbeatTaken:
        return self._post(f"/v1/hosts/{segment(host)}/heartbeat", HeartbeatTaken, beat)

    def meter(self, host: UUID | str, readings: Readings) -> Metered:
        """What a host's meter counted, and up to where the API has it."""
        return self._post(f"/v1/hosts/{segment(host)}/usage", Metered, readings)

    def bind(self, host: UUID | str, slice_id: UUID, bind: Bind) -> Slice:
        return self._post(f"/v1/hosts/{segment(host)}/slices/{slice_id}:bind", Slice, bind)
