# SPDX-License-Identifier: Apache-2.0
"""`slice`: moves a claim together with its VM to another host."""

from typing import Annotated

import typer

from vgpumgr.cli.change import GenerationOption
from vgpumgr.cli.kinds import checked_name, kind_of
from vgpumgr.cli.make import request
from vgpumgr.cli.session import Output, OutputOption, begin
from vgpumgr.cli.show import show
from vgpumgr.cli.units import parse_uuid

slices = typer.Typer(help="Move the slice of a stopped VM to another host.", no_args_is_help=True)

SliceArgument = Annotated[str, typer.Argument(metavar="UUID")]


@slices.command("move")
def move(
    context: typer.Context,
    name: SliceArgument,
    host: Annotated[str, typer.Option(help="host of the new slice")],
    source_off: Annotated[
        str | None, typer.Option(metavar="NAME", help="name of the old host, to confirm that it is powered off")
    ] = None,
    if_generation: GenerationOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Claim a slice on another host in place of this one. Prints the new slice; quota is not charged again.

    Put the new UUID into the domain's XML on that host. The VM starts once the old host has confirmed that it no longer
    starts it. If that host is dead: power it off, wait until 90 s after its last report, and give `--source-off NAME`,
    here or in a repetition of the command. When the old host comes back, its hook refuses the VM.
    """
    from vgpumgr.wire.resources import SliceMove

    session = begin(context, output)
    slice_id = parse_uuid(name, "slice")
    checked_name(host, "host")
    body = request(SliceMove, host=host, source_off=source_off)
    moved = session.client.move_slice(slice_id, body, if_match=if_generation)
    show(session, kind_of("slice"), [moved], single=True)


@slices.command("abort-move")
def abort_move(
    context: typer.Context,
    name: SliceArgument,
    if_generation: GenerationOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Cancel a move before any VM can start with the new slice. Give the new slice's UUID. Prints the old slice."""
    session = begin(context, output)
    kept = session.client.abort_move(parse_uuid(name, "slice"), if_match=if_generation)
    show(session, kind_of("slice"), [kept], single=True)
