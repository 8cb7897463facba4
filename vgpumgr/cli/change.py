# SPDX-License-Identifier: Apache-2.0
"""`set` and `delete`. A change applies to the generation that was read, which is sent as If-Match."""

import re
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, cast
from uuid import UUID

import typer

from vgpumgr.cli.kinds import checked_name, kind_of
from vgpumgr.cli.make import ExternalIdOption, request
from vgpumgr.cli.patience import patiently
from vgpumgr.cli.session import Output, OutputOption, Session, begin
from vgpumgr.cli.show import show
from vgpumgr.cli.units import NO_LABEL, parse_labels, parse_uuid
from vgpumgr.errors import ApiError, ArgumentError, WaitEndedError
from vgpumgr.sizes import parse_size

if TYPE_CHECKING:
    from vgpumgr.client import Client

change = typer.Typer(help="Change tenants, quotas, hosts and GPUs.", no_args_is_help=True)

GenerationOption = Annotated[int | None, typer.Option(min=0, metavar="N", help="only if it still has this generation")]

LabelOption = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="set this label; may be repeated")]
UnlabelOption = Annotated[list[str] | None, typer.Option(metavar="KEY", help="remove this label; may be repeated")]

POLL_S = 0.2
POLL_MAX_S = 2.0


class QuotaModeOption(StrEnum):
    """Modes that a quota may allow, without importing the models for `--help`."""

    STRICT = "strict"
    FAIR = "fair"
    ANY = "any"


class QuotaBandOption(StrEnum):
    """Bands that a quota may allow, without importing the models for `--help`."""

    FAIR = "fair"
    LATENCY = "latency"
    ANY = "any"


class HostStateOption(StrEnum):
    """The states of a host, without importing the models for `--help`."""

    READY = "ready"
    CORDONED = "cordoned"


class DeletableKind(StrEnum):
    """Kinds of objects that can be deleted."""

    TENANT = "tenant"
    PROFILE = "profile"
    HOST = "host"
    SLICE = "slice"
    RESERVATION = "reservation"
    TOKEN = "token"


@change.command("tenant")
def set_tenant(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    external_id: ExternalIdOption = None,
    no_external_id: Annotated[bool, typer.Option("--no-external-id", help="remove its external id")] = False,
    if_generation: GenerationOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change the external id of a tenant, its name in another system. Its own name stays."""
    from vgpumgr.wire.resources import TenantPatch

    session = begin(context, output)
    checked_name(name, "tenant")
    if no_external_id and external_id is not None:
        raise ArgumentError("--external-id sets one and --no-external-id removes it; give one of them")
    patch = TenantPatch(external_id=None) if no_external_id else request(TenantPatch, external_id=external_id)
    if not patch.model_fields_set:
        raise ArgumentError("nothing to set: give --external-id or --no-external-id")
    seen = session.client.tenant(name).etag if if_generation is None else if_generation
    show(session, kind_of("tenant"), [session.client.patch_tenant(name, patch, if_match=seen)], single=True)


@change.command("quota")
def set_quota(
    context: typer.Context,
    tenant: Annotated[str, typer.Argument(metavar="TENANT")],
    share_permille: Annotated[int | None, typer.Option(help="sum over all GPUs; 1000 is one whole GPU")] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="device memory, like 1G")] = None,
    slices: Annotated[int | None, typer.Option(help="number of slices")] = None,
    timeslice_us: Annotated[int | None, typer.Option(help="how long the tenant runs before others get a turn")] = None,
    timeslice_min_us: Annotated[
        int | None, typer.Option(help="the shortest timeslice that may be set, also for projects")
    ] = None,
    timeslice_max_us: Annotated[
        int | None, typer.Option(help="the longest timeslice that may be set, also for projects")
    ] = None,
    mode: Annotated[QuotaModeOption | None, typer.Option(help="only slices of this mode may be claimed")] = None,
    band: Annotated[QuotaBandOption | None, typer.Option(help="only slices of this band may be claimed")] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="only slices of this profile may be claimed; may be repeated"),
    ] = None,
    any_profile: Annotated[bool, typer.Option("--any-profile", help="slices of every profile may be claimed")] = False,
    if_generation: GenerationOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change a tenant's limits; shares follow at once. Options that are not given keep their values."""
    from vgpumgr.wire.resources import QuotaPatch

    session = begin(context, output)
    checked_name(tenant, "tenant")
    patch = request(
        QuotaPatch,
        share_permille=share_permille,
        mem_bytes=None if memory is None else parse_size(memory),
        slices=slices,
        timeslice_us=timeslice_us,
        timeslice_min_us=timeslice_min_us,
        timeslice_max_us=timeslice_max_us,
        profiles=profile or None,
    )
    if any_profile and profile:
        raise ArgumentError("--any-profile allows every profile, and --profile only some; give one of them")
    # A member that is null is removed. No option value can express null, so these members are set here.
    removed: dict[str, object] = {"profiles": None} if any_profile else {}
    if mode is not None:
        removed["mode"] = None if mode is QuotaModeOption.ANY else mode.value
    if band is not None:
        removed["band"] = None if band is QuotaBandOption.ANY else band.value
    patch = QuotaPatch.model_validate(patch.model_dump(exclude_unset=True) | removed)
    if not patch.model_fields_set:
        raise ArgumentError(
            "nothing to set: give --share-permille, --memory, --slices, --timeslice-us or another limit"
        )
    seen = session.client.quota(tenant).etag if if_generation is None else if_generation
    show(session, kind_of("quota"), [session.client.patch_quota(tenant, patch, if_match=seen)], single=True)


@change.command("host")
def set_host(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    state: Annotated[
        HostStateOption | None, typer.Option(help="cordoned: keeps its slices and accepts no more claims")
    ] = None,
    label: LabelOption = None,
    unlabel: UnlabelOption = None,
    if_generation: GenerationOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Cordon or uncordon a host, or label it."""
    from vgpumgr.wire.resources import HostPatch

    session = begin(context, output)
    checked_name(name, "host")
    patch = request(HostPatch, state=state and state.value, labels=labels_patch(label, unlabel))
    if not patch.model_fields_set:
        raise ArgumentError("nothing to set: give --state, --label or --unlabel")
    seen = session.client.host(name).etag if if_generation is None else if_generation
    show(session, kind_of("host"), [session.client.patch_host(name, patch, if_match=seen)], single=True)


@change.command("gpu")
def set_gpu(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="HOST/ADDRESS")],
    label: LabelOption = None,
    unlabel: UnlabelOption = None,
    fair_ratio_permille: Annotated[
        int | None, typer.Option(help="how many times its time may be promised to fair slices, in permille; 1000: once")
    ] = None,
    if_generation: GenerationOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Label a GPU, or over-commit it to fair slices. Existing slices keep what they have."""
    from vgpumgr.wire.resources import Gpu, GpuPatch

    session = begin(context, output)
    patch = request(GpuPatch, labels=labels_patch(label, unlabel), fair_ratio_permille=fair_ratio_permille)
    if not patch.model_fields_set:
        raise ArgumentError("nothing to set: give --label, --unlabel or --fair-ratio-permille")
    gpu = cast("Gpu", kind_of("gpu").found(session.client, name))
    seen = session.client.gpu(gpu.id).etag if if_generation is None else if_generation
    show(session, kind_of("gpu"), [session.client.patch_gpu(gpu.id, patch, if_match=seen)], single=True)


def labels_patch(label: list[str] | None, unlabel: list[str] | None) -> dict[str, str | None] | None:
    """Return a merge patch that adds and removes these labels, None if there are none. ArgumentError."""
    from vgpumgr.wire.common import LABEL_KEY, LABELS_MAX

    for key in unlabel or []:  # in the request, these keys and those of --label are members of one object
        if not re.fullmatch(LABEL_KEY, key):
            raise ArgumentError(f"--unlabel {key[:80]!r}: {NO_LABEL}")
    added = parse_labels(label or [])
    removed: dict[str, str | None] = dict.fromkeys(unlabel or [])
    if both := sorted(added.keys() & removed):
        raise ArgumentError(f"--label sets {both[0]!r} and --unlabel removes it; give one of them")
    patch = removed | added
    if len(patch) > LABELS_MAX:
        given = " and ".join(option for option, labels in (("--label", added), ("--unlabel", removed)) if labels)
        raise ArgumentError(f"{given}: {len(patch)} labels, and a command changes at most {LABELS_MAX}")
    return patch or None


def delete(
    context: typer.Context,
    kind: Annotated[
        DeletableKind, typer.Argument(metavar="KIND", help="tenant, profile, host, slice, reservation or token")
    ],
    names: Annotated[list[str], typer.Argument(metavar="NAME")],
    wait: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="wait until slices are gone, at most this long")
    ] = None,
    if_generation: GenerationOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete objects. A slice's quota and capacity return when its host has confirmed that the device is gone."""
    session = begin(context, output)
    if wait is not None and kind is not DeletableKind.SLICE:
        raise ArgumentError(f"--wait is for slices; a {kind.value} is gone at once")
    if if_generation is not None and (len(names) > 1 or kind is DeletableKind.TOKEN):
        raise ArgumentError("--if-generation is for one tenant, profile, host, slice or reservation")
    if kind is DeletableKind.SLICE:
        _delete_slices(session, [parse_uuid(name, "slice") for name in names], wait, if_generation)
        return
    if kind in (DeletableKind.RESERVATION, DeletableKind.TOKEN):
        checked = [str(parse_uuid(name, kind)) for name in names]
    else:
        checked = [checked_name(name, kind) for name in names]
    for name in checked:
        _delete(session.client, kind, name, if_generation)
        _deleted(session, kind, name)


def _delete(client: "Client", kind: DeletableKind, name: str, generation: int | None) -> None:
    match kind:
        case DeletableKind.TENANT:
            client.delete_tenant(name, if_match=generation)
        case DeletableKind.PROFILE:
            seen = client.profile(name).etag if generation is None else generation
            client.delete_profile(name, if_match=seen)
        case DeletableKind.HOST:
            seen = client.host(name).etag if generation is None else generation
            client.delete_host(name, if_match=seen)
        case DeletableKind.RESERVATION:
            client.delete_reservation(UUID(name), if_match=generation)
        case _:
            client.delete_token(UUID(name))


def _deleted(session: Session, kind: str, name: str) -> None:
    if session.output == Output.JSON:
        session.print_json({"kind": str(kind), "name": name, "deleted": True})
    elif session.output == Output.NAME:
        session.print(name)
    else:
        session.print(f"{kind} {name} deleted")


def _delete_slices(session: Session, ids: list[UUID], wait_s: float | None, if_generation: int | None) -> None:
    releasing, gone = [], []
    try:
        for slice_id in ids:
            claim = session.client.delete_slice(slice_id, if_match=if_generation)
            if claim is None:
                gone.append(slice_id)
            else:
                releasing.append(claim)
    finally:
        # If a later deletion is refused, this still reports the deletions that succeeded.
        if wait_s is None or len(releasing) + len(gone) < len(ids):
            if releasing:
                show(session, kind_of("slice"), releasing, single=len(ids) == 1)
            for slice_id in gone:
                _deleted(session, DeletableKind.SLICE, str(slice_id))
    if wait_s is None:
        return
    deadline_s = session.clock() + wait_s
    for slice_id in ids:
        _wait_gone(session, slice_id, deadline_s)
        _deleted(session, DeletableKind.SLICE, str(slice_id))


def _wait_gone(session: Session, slice_id: UUID, deadline_s: float) -> None:
    pause_s = POLL_S
    while True:
        try:
            claim = patiently(session, partial(session.client.slice, slice_id), until_s=deadline_s)
        except ApiError as error:
            if error.status == 404:
                return
            raise
        if claim.state == "lost":
            raise WaitEndedError(
                f"slice {slice_id} was lost with host {claim.host}: its quota has returned, and the slice disappears"
                " when the host is re-enrolled or deleted"
            )
        left_s = deadline_s - session.clock()
        if left_s <= 0:
            raise WaitEndedError(
                f"slice {slice_id} is still releasing; check that host {claim.host} is online"
                f" (`vgpumgr get host {claim.host}`) and that the VM has stopped"
            )
        session.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, POLL_MAX_S)
