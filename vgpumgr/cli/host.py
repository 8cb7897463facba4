# SPDX-License-Identifier: Apache-2.0
"""`host`: what an operator does to one host."""

from typing import Annotated

import typer

from vgpumgr.cli.change import GenerationOption
from vgpumgr.cli.doctor import doctor
from vgpumgr.cli.kinds import checked_name, kind_of
from vgpumgr.cli.make import SecretFileOption, hand_over, request
from vgpumgr.cli.observe import observe
from vgpumgr.cli.probe_gpu import probe_gpu
from vgpumgr.cli.session import Output, OutputOption, begin
from vgpumgr.cli.show import show
from vgpumgr.cli.watch import watch
from vgpumgr.errors import ArgumentError

host = typer.Typer(help="Check, watch, fence or re-enrol a host; confirm its epoch.", no_args_is_help=True)
host.command()(doctor)
host.command()(observe)
host.command("probe-gpu")(probe_gpu)
host.command()(watch)

NameArgument = Annotated[str, typer.Argument(metavar="NAME")]


@host.command("confirm-epoch")
def confirm_epoch(context: typer.Context, name: NameArgument, output: OutputOption = Output.TABLE) -> None:
    """After the API's database was restored: let the host obey deletions again."""
    session = begin(context, output)
    show(session, kind_of("host"), [session.client.confirm_epoch(checked_name(name, "host"))], single=True)


@host.command("fence")
def fence(
    context: typer.Context,
    name: NameArgument,
    confirm: Annotated[str, typer.Option(metavar="NAME", help="its name once more: you made sure that it is off")],
    force: Annotated[
        bool,
        typer.Option("--force", help="also if it was heard of within the last 90 s; its VMs may then run twice"),
    ] = False,
    if_generation: GenerationOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Declare a host dead: its slices are lost, their quota is back, its credential stops working.

    Power it off first, at its BMC or plug, and see that it stays off: the owners of its VMs may then claim again and
    start them elsewhere, and what is lost stays lost. `vgpumgr get slices --host NAME --state lost` lists for whom.
    Once it is repaired `vgpumgr host reenroll NAME` takes it back; `vgpumgr delete host NAME` if it never is.
    """
    from vgpumgr.wire.resources import HostFence

    session = begin(context, output)
    checked_name(name, "host")
    if confirm != name:
        raise ArgumentError(f"--confirm {confirm[:80]!r} is not {name}; look again which host is dead")
    body = request(HostFence, confirm=confirm, force=force)
    generation = session.client.host(name).generation if if_generation is None else if_generation
    show(session, kind_of("host"), [session.client.fence(name, body, if_generation=generation)], single=True)


@host.command("reenroll")
def reenroll(
    context: typer.Context, name: NameArgument, token_file: SecretFileOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Give a host a new one-time token. Its present credential stops working at once."""
    session = begin(context, output)
    checked = checked_name(name, "host")
    hand_over(session, "host", token_file, lambda: session.client.reenroll(checked), "enroll_token")
