# SPDX-License-Identifier: Apache-2.0
"""`host`: what an operator does to one host."""

from typing import Annotated

import typer

from vgpumgr.cli.doctor import doctor
from vgpumgr.cli.kinds import checked_name, kind_of
from vgpumgr.cli.make import SecretFileOption, hand_over
from vgpumgr.cli.session import Output, OutputOption, begin
from vgpumgr.cli.show import show

host = typer.Typer(help="Check a host, confirm its epoch, let it enrol again.", no_args_is_help=True)
host.command()(doctor)

NameArgument = Annotated[str, typer.Argument(metavar="NAME")]


@host.command("confirm-epoch")
def confirm_epoch(context: typer.Context, name: NameArgument, output: OutputOption = Output.TABLE) -> None:
    """After the API's database was restored: let the host obey deletions again."""
    session = begin(context, output)
    show(session, kind_of("host"), [session.client.confirm_epoch(checked_name(name, "host"))], single=True)


@host.command("reenroll")
def reenroll(
    context: typer.Context, name: NameArgument, token_file: SecretFileOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Give a host a new one-time token. Its present credential stops working at once."""
    session = begin(context, output)
    checked = checked_name(name, "host")
    hand_over(session, "host", token_file, lambda: session.client.reenroll(checked), "enroll_token")
