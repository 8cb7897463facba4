# SPDX-License-Identifier: Apache-2.0
"""`run`: start a program that computes on a tenant's accelerator."""

from pathlib import Path
from typing import Annotated

import typer

from vgpumgr.cli.broker import DirectoryOption, find
from vgpumgr.cli.kinds import checked_name
from vgpumgr.cli.session import Output, Session, begin
from vgpumgr.cli.units import parse_uuid
from vgpumgr.errors import ArgumentError


def run(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="PROGRAM")],
    tenant: Annotated[str | None, typer.Option(help="tenant whose accelerator the program uses")] = None,
    claim: Annotated[
        str | None,
        typer.Option(metavar="UUID", help="with --native: use the GPU of this claim; run it on the claim's host"),
    ] = None,
    native: Annotated[
        bool, typer.Option("--native", help="the program opens the GPU itself, behind a fence; see docs/native.md")
    ] = False,
    run_directory: DirectoryOption = None,
) -> None:
    """Start a program that uses a broker's accelerator.

    The program is not changed: its environment makes OpenCL's loader load our library, which connects to the tenant's
    socket. With --native it uses the vendor's own libraries, with all of CUDA, and the broker stops its work on the
    GPU when its turn is over. The program and its arguments follow `--`.

    --claim names a claim for processes (`vgpumgr create slice --workload process`) instead of a tenant.

    Exit status: that of the program. 125: --native, and the launcher was refused; 126: the program cannot be executed;
    127: it does not exist. Other errors have the statuses of `vgpumgr --help`.
    """
    from vgpumgr.broker.launch import become_program, check_socket, environment, native_command
    from vgpumgr.broker.places import launcher

    session = begin(context, Output.TABLE)
    name, directory = _where(session, tenant, claim, run_directory, native=native)
    starter = launcher() if native else None
    check_socket(directory, name)
    if starter is not None:
        become_program(native_command(starter, directory, name, command), session.env)
    become_program(command, environment(directory, name, session.env))


def _where(
    session: Session, tenant: str | None, claim: str | None, run_directory: str | None, *, native: bool
) -> tuple[str, Path]:
    """Return the broker's tenant and run directory."""
    if (tenant is None) == (claim is None):
        raise ArgumentError("give one of --tenant and --claim")
    if tenant is not None:
        return checked_name(tenant, "tenant"), find(session, run_directory)
    from vgpumgr.broker.claims import directory_of
    from vgpumgr.control.sysfs import HostPaths

    if not native:
        raise ArgumentError("programs of a claim open the GPU themselves; give --native as well")
    uuid = parse_uuid(str(claim), "claim")
    return str(uuid), Path(run_directory) if run_directory else directory_of(uuid, HostPaths(session.root).brokers)
