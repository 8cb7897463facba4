# SPDX-License-Identifier: Apache-2.0
"""The kinds of objects: their names, how they are looked up, and their table columns."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vgpumgr.cli.units import format_us, parse_uuid
from vgpumgr.errors import ApiError, ArgumentError, MissingError
from vgpumgr.sizes import format_size

if TYPE_CHECKING:
    from datetime import datetime

    from pydantic import BaseModel

    from vgpumgr.client import Client
    from vgpumgr.wire.audit import AuditEntry
    from vgpumgr.wire.operations import Operation
    from vgpumgr.wire.resources import Event, Gpu, Host, Profile, Quota, Reservation, Slice, Tenant, Token

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of object.

    `listed` reads a list with filters. `found` reads one object by its name, which `name` returns and ``-o name``
    prints. `choices`: the values of filters that have a fixed set. The values are repeated here, so that `--help` needs
    no models.
    """

    singular: str
    plural: str
    header: tuple[str, ...]
    row: Callable[[Any], tuple[str, ...]]
    name: Callable[[Any], str]
    listed: "Callable[[Client, Mapping[str, Any]], Iterable[BaseModel]]"
    found: "Callable[[Client, str], BaseModel]"
    filters: tuple[str, ...] = ()
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def kind_of(word: str) -> Kind:
    """Return the kind of this name, singular or plural. ArgumentError."""
    for kind in KINDS:
        if word in (kind.singular, kind.plural):
            return kind
    raise ArgumentError(f"unknown kind {word[:40]!r}; known kinds: {', '.join(kind.plural for kind in KINDS)}")


def checked_name(text: str, what: str) -> str:
    """Return `text` if it can be the name of an object. ArgumentError."""
    if not _NAME.fullmatch(text):
        raise ArgumentError(
            f"{what} {text[:80]!r} is not a name: a name has 1 to 63 characters a-z, 0-9 and '-', '-' not first or last"
        )
    return text


def moment(at: "datetime | None") -> str:
    """Return an instant as ISO 8601 in UTC, to the second."""
    from datetime import UTC

    return "-" if at is None else at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def yes(value: bool) -> str:
    return "yes" if value else "no"


def permille(value: int | None) -> str:
    """Return ``30%`` for 300, ``0.5%`` for 5."""
    return "-" if value is None else f"{value / 10:g}%"


# ---- rows


def _tenant(tenant: "Tenant") -> tuple[str, ...]:
    external_id = "-" if tenant.external_id is None else tenant.external_id
    return tenant.name, tenant.kind, tenant.account or "-", external_id, moment(tenant.created_at)


def _quota(quota: "Quota") -> tuple[str, ...]:
    return (
        quota.tenant,
        f"{quota.used_share_permille}/{quota.share_permille}",
        f"{format_size(quota.used_mem_bytes)}/{format_size(quota.mem_bytes)}",
        f"{quota.used_slices}/{quota.slices}",
        format_us(quota.timeslice_us),
    )


def _profile(profile: "Profile") -> tuple[str, ...]:
    return (
        profile.name,
        permille(profile.share_permille),
        format_size(profile.mem_bytes),
        profile.mode,
        moment(profile.created_at),
    )


def _hosts(client: "Client", filters: Mapping[str, Any]) -> "Iterable[Host]":
    """List hosts by the state that the table shows: a fenced host matches no other state."""
    state = filters.get("state")
    unconfirmed = "unconfirmed" in filters
    found = client.hosts(
        state=None if state == FENCED else state,
        fenced=None if state is None else state == FENCED,
        epoch_confirmed=False if unconfirmed else None,
        selector=filters.get("selector"),
    )
    return (host for host in found if not (unconfirmed and _new(host)))


def _new(host: "Host") -> bool:
    """Whether the host has no epoch yet. Its first enrolment confirms an epoch, so an operator need not."""
    return not host.enrolled and not host.agent_version


def _host(host: "Host") -> tuple[str, ...]:
    return (
        host.name,
        host.state if host.fenced_at is None else FENCED,
        yes(host.enrolled),
        yes(host.online),
        "confirmed" if host.epoch_confirmed else "-" if _new(host) else "UNCONFIRMED",
        moment(host.last_report_at),
        host.agent_version or "-",
    )


def _gpu(gpu: "Gpu") -> tuple[str, ...]:
    return (
        gpu.host,
        gpu.address,
        gpu.engine or "-",
        f"{gpu.driver} (adopted)" if gpu.adopted else gpu.driver or "-",
        f"{gpu.used_share_permille}/{gpu.share_permille}",
        f"{format_size(gpu.used_mem_bytes)}/{format_size(gpu.mem_bytes)}",
        ",".join(format_size(offered.mem_bytes) for offered in gpu.types) or "-",
        f"{gpu.fair_ratio_permille / 1000:g}",
        yes(gpu.present),
    )


def _slice(claim: "Slice") -> tuple[str, ...]:
    seen = claim.observed
    device = "unknown" if seen is None else "open" if seen.open else "present" if seen.present else "absent"
    return (
        str(claim.id),
        claim.tenant,
        claim.profile,
        claim.host,
        claim.gpu,
        str(claim.vm_uuid or ("-" if claim.workload == "vm" else claim.workload)),
        claim.state,
        permille(claim.enforcement.requested_permille),
        permille(claim.enforcement.applied_permille),
        device,
    )


def _operation(operation: "Operation") -> tuple[str, ...]:
    progress, moved = operation.progress, (operation.result or {}).get("moved")
    # A re-homing is already complete when created, and so has no progress. Its result counts the moved claims.
    total, left = (moved, 0) if isinstance(moved, int) and not progress.total else (progress.total, progress.left)
    done = f"{total - left}/{total}"
    error = operation.error.code if operation.error else "-"
    created = moment(operation.created_at)
    return str(operation.id), operation.kind, operation.target, operation.state, done, error, operation.actor, created


def _reservation(held: "Reservation") -> tuple[str, ...]:
    return str(held.id), held.tenant, held.profile, str(held.places), str(held.places_left), moment(held.expires_at)


def _token(token: "Token") -> tuple[str, ...]:
    expires = "never" if token.expires_at is None else moment(token.expires_at)
    scopes = "-" if token.scopes is None else ",".join(token.scopes)
    return str(token.id), token.role, token.subject or "-", moment(token.created_at), expires, scopes


def _event(event: "Event") -> tuple[str, ...]:
    return str(event.seq), moment(event.at), event.kind, event.actor, event.tenant or "-", event.object


def _audit(entry: "AuditEntry") -> tuple[str, ...]:
    generation = "-" if entry.generation is None else str(entry.generation)
    source = entry.source or "-"
    return str(entry.id), moment(entry.at), entry.actor, source, entry.action, entry.object, generation


# ---- kinds without a route for one object


def _one_of(kind: str, name: str, candidates: "Iterable[BaseModel]", *, hint: str = "") -> "BaseModel":
    matches = list(candidates)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise MissingError(f"{len(matches)} {kind}s are called {name!r}; {hint}")
    known = f"`vgpumgr get {kind}s` lists those that you may see"
    raise MissingError(f"there is no {kind} {name[:80]!r}; {hint}{'; ' if hint else ''}{known}")


def _find_gpu(client: "Client", name: str) -> "BaseModel":
    host, _, _ = name.rpartition("/")
    gpus = client.gpus(host=checked_name(host, "host") if host else None)  # not the tens of thousands of a whole fleet
    matches = (gpu for gpu in gpus if name in (gpu.address, f"{gpu.host}/{gpu.address}", str(gpu.id)))
    return _one_of("gpu", name, matches, hint="give HOST/ADDRESS")


def _find_token(client: "Client", name: str) -> "BaseModel":
    wanted = parse_uuid(name, "token")
    return _one_of("token", name, (token for token in client.tokens() if token.id == wanted))


def _find_event(client: "Client", name: str) -> "BaseModel":
    if not (name.isascii() and name.isdigit() and 0 < int(name[:20]) < 1 << 63):
        raise ArgumentError(f"event {name[:80]!r}: an event is named by its number, see `vgpumgr get events`")
    wanted = int(name)
    # Event numbers have gaps, so the first event after `wanted - 1` may have a larger number.
    try:
        first = next(iter(client.events(after=wanted - 1)), None)
    except ApiError as error:
        if error.code != "watch.expired":  # the event is no longer kept, or does not exist yet
            raise
        first = None
    return _one_of("event", name, [first] if first is not None and first.seq == wanted else [])


def _find_audit(_: "Client", name: str) -> "BaseModel":
    raise ArgumentError(
        f"audit {name[:80]!r}: entries have no names; choose with --actor, --action, --object or --since"
    )


FENCED = "fenced"  # shown in the table in place of the host's state
HOST_STATES = ("ready", "cordoned", "draining", "maintenance", "lost")
SLICE_STATES = ("claimed", "prepared", "attached", "releasing", "failed", "orphaned", "lost")
AUDIT_FILTERS = ("tenant", "actor", "action", "object", "request_id", "since", "until")

KINDS = (
    Kind(
        singular="tenant",
        plural="tenants",
        header=("NAME", "KIND", "ACCOUNT", "EXTERNAL ID", "CREATED"),
        row=_tenant,
        name=lambda tenant: str(tenant.name),
        listed=lambda client, filters: client.tenants(
            account=filters.get("account"), external_id=filters.get("external_id")
        ),
        found=lambda client, name: client.tenant(checked_name(name, "tenant")),
        filters=("account", "external_id"),
    ),
    Kind(
        singular="quota",
        plural="quotas",
        header=("TENANT", "SHARE(PERMILLE)", "MEMORY", "SLICES", "TIMESLICE"),
        row=_quota,
        name=lambda quota: str(quota.tenant),
        listed=lambda client, filters: client.quotas(account=filters.get("account")),
        found=lambda client, name: client.quota(checked_name(name, "tenant")),
        filters=("account",),
    ),
    Kind(
        singular="profile",
        plural="profiles",
        header=("NAME", "SHARE", "MEMORY", "MODE", "CREATED"),
        row=_profile,
        name=lambda profile: str(profile.name),
        listed=lambda client, filters: client.profiles(mode=filters.get("mode")),
        found=lambda client, name: client.profile(checked_name(name, "profile")),
        filters=("mode",),
        choices={"mode": ("strict", "fair")},
    ),
    Kind(
        singular="host",
        plural="hosts",
        header=("NAME", "STATE", "ENROLLED", "ONLINE", "EPOCH", "LAST REPORT", "AGENT"),
        row=_host,
        name=lambda host: str(host.name),
        listed=_hosts,
        found=lambda client, name: client.host(checked_name(name, "host")),
        filters=("state", "unconfirmed", "selector"),
        choices={"state": (*HOST_STATES, FENCED)},
    ),
    Kind(
        singular="gpu",
        plural="gpus",
        header=("HOST", "GPU", "ENGINE", "DRIVER", "SHARE(PERMILLE)", "MEMORY", "CLASSES", "FAIR RATIO", "PRESENT"),
        row=_gpu,
        name=lambda gpu: f"{gpu.host}/{gpu.address}",
        listed=lambda client, filters: client.gpus(
            host=filters.get("host"), host_state=filters.get("state"), selector=filters.get("selector")
        ),
        found=_find_gpu,
        filters=("host", "state", "selector"),
        choices={"state": HOST_STATES},
    ),
    Kind(
        singular="slice",
        plural="slices",
        header=("ID", "TENANT", "PROFILE", "HOST", "GPU", "VM", "STATE", "REQUESTED", "APPLIED", "DEVICE"),
        row=_slice,
        name=lambda claim: str(claim.id),
        listed=lambda client, filters: client.slices(
            tenant=filters.get("tenant"),
            host=filters.get("host"),
            vm_uuid=filters.get("vm"),
            state=filters.get("state"),
            profile=filters.get("profile"),
        ),
        found=lambda client, name: client.slice(parse_uuid(name, "slice")),
        filters=("tenant", "host", "vm", "state", "profile"),
        choices={"state": SLICE_STATES},
    ),
    Kind(
        singular="reservation",
        plural="reservations",
        header=("ID", "TENANT", "PROFILE", "PLACES", "LEFT", "EXPIRES"),
        row=_reservation,
        name=lambda reservation: str(reservation.id),
        listed=lambda client, filters: client.reservations(
            tenant=filters.get("tenant"), profile=filters.get("profile")
        ),
        found=lambda client, name: client.reservation(parse_uuid(name, "reservation")),
        filters=("tenant", "profile"),
    ),
    Kind(
        singular="operation",
        plural="operations",
        header=("ID", "KIND", "TARGET", "STATE", "DONE", "ERROR", "ACTOR", "CREATED"),
        row=_operation,
        name=lambda operation: str(operation.id),
        listed=lambda client, filters: client.operations(target=filters.get("target"), state=filters.get("state")),
        found=lambda client, name: client.operation(parse_uuid(name, "operation")),
        filters=("target", "state"),
        choices={"state": ("running", "succeeded", "failed", "cancelled")},
    ),
    Kind(
        singular="token",
        plural="tokens",
        header=("ID", "ROLE", "SUBJECT", "CREATED", "EXPIRES", "SCOPES"),
        row=_token,
        name=lambda token: str(token.id),
        listed=lambda client, filters: client.tokens(role=filters.get("role"), subject=filters.get("subject")),
        found=_find_token,
        filters=("role", "subject"),
        choices={"role": ("admin", "operator", "tenant-admin", "tenant", "viewer", "host")},
    ),
    Kind(
        singular="event",
        plural="events",
        header=("SEQ", "AT", "KIND", "ACTOR", "TENANT", "OBJECT"),
        row=_event,
        name=lambda event: str(event.seq),
        listed=lambda client, filters: client.events(
            after=filters.get("after") or 0, about=filters.get("about"), tenant=filters.get("tenant")
        ),
        found=_find_event,
        filters=("after", "about", "tenant", "watch"),
    ),
    Kind(
        singular="audit",
        plural="audit",
        header=("ID", "AT", "ACTOR", "SOURCE", "ACTION", "OBJECT", "GENERATION"),
        row=_audit,
        name=lambda entry: str(entry.id),
        listed=lambda client, filters: client.audit(**filters),
        found=_find_audit,
        filters=AUDIT_FILTERS,
    ),
)
