# SPDX-License-Identifier: Apache-2.0
"""`run`: start a program that computes on a tenant's accelerator."""

from typing import Annotated

import typer

from vgpumgr.cli.broker import DirectoryOption, find
from vgpumgr.cli.kinds import checked_name
from vgpumgr.cli.session import Output, begin


def run(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="PROGRAM")],
    tenant: Annotated[str, typer.Option(help="on whose accelerator")],
    native: Annotated[
        bool, typer.Option("--native", help="the program holds the GPU itself, behind a fence: docs/native.md")
    ] = False,
    run_directory: DirectoryOption = None,
) -> None:
    """Start a program that uses a broker's accelerator.

    The program is not changed: its environment makes OpenCL's loader load our library, which connects to the tenant's
    socket. With --native it uses the vendor's own libraries, all of CUDA, and the broker stops what it has on the GPU
    when its turn is over. What follows `--` is the program and its arguments.
    """
    from vgpumgr.broker.launch import become_program, check_socket, environment, native_command
    from vgpumgr.broker.places import launcher

    session = begin(context, Output.TABLE)
    name = checked_name(tenant, "tenant")
    directory = find(session, run_directory)
    starter = launcher() if native else None
    check_socket(directory, name)
    if starter is not None:
        become_program(native_command(starter, directory, name, command), session.env)
    become_program(command, environment(directory, name, session.env))
