# SPDX-License-Identifier: Apache-2.0
"""Claims: `create slice`, `create slices` for all of several or none, and `explain`, which predicts the outcome."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vgpumgr.cli.failures import Status
from vgpumgr.cli.kinds import kind_of
from vgpumgr.cli.make import (
    AffinityOption,
    AntiAffinityOption,
    PlacementOption,
    WorkloadOption,
    create,
    refused,
    request,
    tie,
)
from vgpumgr.cli.session import JsonOutput, JsonOutputOption, Output, OutputOption, Session, begin, dumped, table
from vgpumgr.cli.show import show
from vgpumgr.cli.units import parse_selector, parse_uuid
from vgpumgr.errors import ArgumentError

if TYPE_CHECKING:
    from vgpumgr.wire.resources import Slice, SliceBatch, SliceCreate

BATCH_BYTES_MAX = 1 << 20
"""The API reads no more."""

TenantOption = Annotated[str, typer.Option(help="tenant whose quota is charged")]
ProfileOption = Annotated[str, typer.Option(help="profile of the slice")]
VmOption = Annotated[
    str | None,
    typer.Option(metavar="UUID", help="for this VM; without it, for the first VM that starts with the slice"),
]
HostOption = Annotated[str | None, typer.Option(help="only on this host")]
WhereOption = Annotated[PlacementOption, typer.Option(help="spread: on the emptiest GPU")]
SelectorOption = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="only on GPUs with this label; may be repeated")
]
ReservationOption = Annotated[str | None, typer.Option(metavar="UUID", help="take a place of this reservation")]
ForOption = Annotated[WorkloadOption, typer.Option("--workload", help="process: for programs of a host, not for a VM")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="show what the result would be, and store nothing")]


@create.command("slice")
def create_slice(
    context: typer.Context,
    tenant: TenantOption,
    profile: ProfileOption,
    vm: VmOption = None,
    host: HostOption = None,
    placement: WhereOption = PlacementOption.PACK,
    selector: SelectorOption = None,
    affinity: AffinityOption = None,
    anti_affinity: AntiAffinityOption = None,
    reservation: ReservationOption = None,
    workload: ForOption = WorkloadOption.VM,
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Claim a slice. It uses quota of the tenant and capacity of a GPU."""
    session = begin(context, output)
    wanted = _claim(tenant, profile, vm, host, placement, selector, affinity, anti_affinity, reservation, workload)
    _claimed(session, [session.client.create_slice(wanted, validate_only=dry_run)], single=True, dry_run=dry_run)


@create.command("slices")
def create_slices(
    context: typer.Context,
    file: Annotated[
        str, typer.Option("--file", "-f", metavar="FILE", help="JSON: a list of claims as in REST; - is standard input")
    ],
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Claim several slices of one tenant, all of them or none."""
    session = begin(context, output)
    batch = _batch(file)
    _claimed(session, session.client.create_slices(batch, validate_only=dry_run), single=False, dry_run=dry_run)


def explain(
    context: typer.Context,
    tenant: TenantOption,
    profile: ProfileOption,
    vm: VmOption = None,
    host: HostOption = None,
    placement: WhereOption = PlacementOption.PACK,
    selector: SelectorOption = None,
    affinity: AffinityOption = None,
    anti_affinity: AntiAffinityOption = None,
    reservation: ReservationOption = None,
    workload: ForOption = WorkloadOption.VM,
    output: JsonOutputOption = JsonOutput.TABLE,
) -> None:
    """Show what a claim would result in, and how many GPUs are ruled out for each reason. Claims nothing.

    Exit status 6: the claim would not succeed now.
    """
    session = begin(context, output)
    found = session.client.explain_slice(
        _claim(tenant, profile, vm, host, placement, selector, affinity, anti_affinity, reservation, workload)
    )
    if output is JsonOutput.JSON:
        session.print_json(dumped(found))
    else:
        fitting = f"{found.fitting} of {found.gpus} GPU{'' if found.gpus == 1 else 's'} fit"
        session.print(f"fits: yes, on {found.host}/{found.gpu}; {fitting}" if found.fits else f"fits: no; {fitting}")
        if found.detail:
            session.print(found.detail)
        if found.reasons:
            rows = ((each.code, "-" if each.count is None else str(each.count), each.detail) for each in found.reasons)
            session.print(table(("REASON", "GPUS", "WHY"), rows))
    if not found.fits:
        raise typer.Exit(Status.NO_CAPACITY)


def _claim(
    tenant: str,
    profile: str,
    vm: str | None,
    host: str | None,
    placement: PlacementOption,
    selector: list[str] | None,
    affinity: str | None,
    anti_affinity: str | None,
    reservation: str | None,
    workload: WorkloadOption,
) -> "SliceCreate":
    from vgpumgr.wire.resources import SliceCreate

    vm_uuid = None if vm is None else parse_uuid(vm, "VM")
    return request(
        SliceCreate,
        tenant=tenant,
        profile=profile,
        vm_uuid=vm_uuid,
        host=host,
        placement=placement.value,
        selector=parse_selector(selector or []),
        affinity=tie("--affinity", affinity),
        anti_affinity=tie("--anti-affinity", anti_affinity),
        reservation=None if reservation is None else parse_uuid(reservation, "reservation"),
        workload=workload.value,
    )


def _batch(file: str) -> "SliceBatch":
    """Read claims: a list, or the body that REST accepts. ArgumentError for input that the API would refuse."""
    import json

    from pydantic import ValidationError

    from vgpumgr.wire.resources import SliceBatch

    where = "standard input" if file == "-" else file
    try:
        if file == "-":
            text = sys.stdin.buffer.read(BATCH_BYTES_MAX + 1)
        else:
            with Path(file).open("rb") as stream:
                text = stream.read(BATCH_BYTES_MAX + 1)
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ArgumentError(
            f"{where}, line {error.lineno}: not valid JSON: {error.msg}; give a list of claims"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "not valid JSON"
        raise ArgumentError(f"{where}: {reason}; give a list of claims in JSON") from None
    if len(text) > BATCH_BYTES_MAX:
        raise ArgumentError(f"{where}: more than {BATCH_BYTES_MAX >> 20} MiB, which the API does not accept")
    body = {"slices": content} if isinstance(content, list) else content
    if not isinstance(body, dict) or "slices" not in body:
        raise ArgumentError(f"{where}: not a list; give a list of claims in JSON")
    try:
        return SliceBatch.model_validate_json(json.dumps(body))
    except ValidationError as error:
        raise ArgumentError(f"{where}: $.{refused(error)}") from None


def _claimed(session: Session, claims: "list[Slice]", *, single: bool, dry_run: bool) -> None:
    show(session, kind_of("slice"), claims, single=single)
    if dry_run:
        session.note("dry run: nothing was stored")
