# SPDX-License-Identifier: Apache-2.0
"""Hosts, as operators see them."""

from typing import Annotated

from fastapi import APIRouter, Body, Query

from vgpumgr.wire.common import Name, Page
from vgpumgr.wire.operations import HostDrain, Operation
from vgpumgr.wire.resources import Host, HostCreate, HostCreated, HostFence, HostPatch, HostState
from vgpumgr.wire.selector import Selector, parse_selector
from vgpumgr_api.edge.call import Call, CallDep, Flag, IdempotencyKey, IfMatch, PageDep, TrialDep
from vgpumgr_api.edge.expired import despite_expired
from vgpumgr_api.edge.strict import Route
from vgpumgr_api.fleet import cordoning, drain, fencing, hosts

router = APIRouter(prefix="/v1/hosts", tags=["hosts"], route_class=Route)


@router.get("")
def list_hosts(
    call: CallDep,
    page: PageDep,
    state: HostState | None = None,
    online: Flag | None = None,
    enrolled: Flag | None = None,
    fenced: Annotated[Flag | None, Query(description="declared dead, and not enrolled since then")] = None,
    epoch_confirmed: Annotated[Flag | None, Query(description="false from a restore until `:confirm-epoch`")] = None,
    selector: Selector | None = None,
) -> Page[Host]:
    """Lists hosts by name, filtered by state, by labels, or by being online, enrolled, fenced or confirmed."""
    labels = parse_selector(selector) if selector else {}
    wanted = hosts.HostFilter(
        state=state, online=online, enrolled=enrolled, fenced=fenced, epoch_confirmed=epoch_confirmed, labels=labels
    )
    return call.read(hosts.list_hosts, page, wanted)


@router.post("", status_code=201)
def create_host(call: CallDep, wanted: HostCreate, idempotency_key: IdempotencyKey = None) -> HostCreated:
    """Announces a host. Its `enroll_token` is shown once; a repeat with the same Idempotency-Key does not get it."""
    host = call.show_once(
        idempotency_key, lambda session, actor: hosts.create_host(session, actor, wanted), wanted, made=_named
    )
    call.located(f"/v1/hosts/{host.name}")
    call.tag(host.id, host.generation)
    return host


@router.get("/{name}")
def get_host(call: CallDep, name: Name) -> Host:
    """Returns a host."""
    host = call.read(hosts.get_host, name)
    call.tag(host.id, host.generation)
    return host


@router.patch("/{name}")
def patch_host(call: TrialDep, name: Name, patch: HostPatch, if_match: IfMatch) -> Host:
    """Cordons a host or returns it to service, and changes labels. Needs If-Match."""
    host = call.write(hosts.patch_host, name, patch, if_match=if_match)
    call.tag(host.id, host.generation)
    return host


@router.delete("/{name}", status_code=204)
def delete_host(call: TrialDep, name: Name, if_match: IfMatch) -> None:
    """Deletes a host without slices; lost slices of a fenced host are deleted with it. Needs If-Match."""
    despite_expired(call, lambda: call.write(hosts.delete_host, name, if_match=if_match))


@router.post("/{name}:confirm-epoch")
def confirm_epoch(call: TrialDep, name: Name, if_match: IfMatch) -> Host:
    """Lets a host delete slices that a restored database no longer has.

    With If-Match, this is refused if the database was restored again after the host was read.
    """
    host = call.write(hosts.confirm_epoch, name, if_match=if_match)
    call.tag(host.id, host.generation)
    return host


@router.post("/{name}:cordon")
def cordon(call: TrialDep, name: Name, if_match: IfMatch) -> Host:
    """Stops a host from taking claims; its slices stay. Needs If-Match."""
    return _tagged(call, call.write(cordoning.cordon_host, name, if_match=if_match))


@router.post("/{name}:uncordon")
def uncordon(call: TrialDep, name: Name, if_match: IfMatch) -> Host:
    """Lets a host take claims again after a cordon, a drain or maintenance. Needs If-Match."""
    return _tagged(call, call.write(cordoning.uncordon_host, name, if_match=if_match))


@router.post("/{name}:maintenance")
def maintenance(call: TrialDep, name: Name, if_match: IfMatch) -> Host:
    """Sets maintenance: no VM starts with a slice there. Refused while slices have devices there. Needs If-Match."""
    return _tagged(call, call.write(cordoning.maintain_host, name, if_match=if_match))


@router.post(
    "/{name}:drain",
    status_code=202,
    responses={200: {"description": "With validate_only: what would be started", "model": Operation}},
)
def drain_host(
    call: TrialDep,
    name: Name,
    wanted: Annotated[HostDrain, Body(default_factory=HostDrain)],
    if_match: IfMatch,
    idempotency_key: IdempotencyKey = None,
) -> Operation:
    """Stops a host from taking claims, and waits until its slices are gone. Deletes none. Needs If-Match."""
    begun = call.write_once(
        idempotency_key,
        lambda session, actor, body: drain.drain_host(session, actor, name, body, if_match=if_match),
        wanted,
        kind=Operation,
    )
    call.located(f"/v1/operations/{begun.id}")
    call.tag(begun.id, begun.generation)
    return begun


@router.post("/{name}:fence")
def fence(call: TrialDep, name: Name, wanted: HostFence, if_match: IfMatch) -> Host:
    """Declares a host dead: revokes its credentials, marks its slices lost, returns their quota. Needs If-Match."""
    host = call.write(fencing.fence_host, name, wanted, if_match=if_match)
    call.tag(host.id, host.generation)
    return host


@router.post("/{name}:reenroll")
def reenroll(call: CallDep, name: Name, idempotency_key: IdempotencyKey = None) -> HostCreated:
    """Creates a new one-time token for a host, shown once like the first, and revokes its agent's credential."""
    host = call.show_once(
        idempotency_key, lambda session, actor: hosts.reenroll(session, actor, name), None, made=_named
    )
    call.tag(host.id, host.generation)
    return host


def _named(host: Host) -> str:
    return f"host {host.name}"


def _tagged(call: Call, host: Host) -> Host:
    call.tag(host.id, host.generation)
    return host
