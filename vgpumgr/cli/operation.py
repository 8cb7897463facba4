# SPDX-License-Identifier: Apache-2.0
"""`operation`: work that outlasts a command, like draining a host."""

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from vgpumgr.cli.change import GenerationOption
from vgpumgr.cli.kinds import checked_name, kind_of
from vgpumgr.cli.make import request
from vgpumgr.cli.patience import patiently
from vgpumgr.cli.session import Output, OutputOption, Session, begin
from vgpumgr.cli.show import show
from vgpumgr.cli.units import parse_uuid
from vgpumgr.errors import OperationFailedError, WaitEndedError

if TYPE_CHECKING:
    from vgpumgr.wire.operations import Operation

operation = typer.Typer(help="Show operations, wait for them, cancel them.", no_args_is_help=True)

WAIT_S = 10
"""How long the API may delay one answer, and so how old the shown progress may be."""
PAUSE_S = 1.0

IdArgument = Annotated[str, typer.Argument(metavar="ID")]


class OperationStateOption(StrEnum):
    """The states of an operation, without importing the models for `--help`."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@operation.command("list")
def list_operations(
    context: typer.Context,
    kind: Annotated[str | None, typer.Option(help="only of this kind, like host.drain")] = None,
    target: Annotated[str | None, typer.Option(metavar="NAME", help="only about this host")] = None,
    state: Annotated[OperationStateOption | None, typer.Option(help="only in this state")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List operations that are under way, or were done within a week."""
    session = begin(context, output)
    if target is not None:
        checked_name(target, "target")
    show(session, kind_of("operation"), session.client.operations(kind=kind, target=target, state=state))


@operation.command("show")
def show_operation(context: typer.Context, name: IdArgument, output: OutputOption = Output.TABLE) -> None:
    """Show how far an operation is, and what it waits for."""
    session = begin(context, output)
    present(session, [session.client.operation(parse_uuid(name, "operation"))])


@operation.command("wait")
def wait_for(
    context: typer.Context,
    name: IdArgument,
    timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="wait at most this long")] = 3600,
    output: OutputOption = Output.TABLE,
) -> None:
    """Wait until an operation is done.

    Exits with an error if the operation failed, was cancelled or takes too long.
    """
    session = begin(context, output)
    deadline_s = session.clock() + timeout
    found = _followed(session, parse_uuid(name, "operation"), deadline_s, answered=False)
    present(session, [found])
    _require_success([found])


@operation.command("cancel")
def cancel(
    context: typer.Context,
    name: IdArgument,
    undo: Annotated[
        bool, typer.Option("--undo", help="undo its changes: a drained host accepts claims again if it did before")
    ] = False,
    if_generation: GenerationOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Cancel an operation that is under way. Without --undo, a host that was being drained stays cordoned."""
    from vgpumgr.wire.operations import OperationCancel

    session = begin(context, output)
    operation_id = parse_uuid(name, "operation")
    body = request(OperationCancel, undo=undo)
    present(session, [session.client.cancel_operation(operation_id, body, if_match=if_generation)])


def wait(session: Session, begun: Sequence["Operation"], wait_s: float, *, single: bool) -> None:
    """Wait until these operations have ended, and show them. WaitEndedError, OperationFailedError.

    When one operation fails, the wait for the others goes on.
    """
    deadline_s = session.clock() + wait_s
    done: list[Operation] = []
    try:
        ends = (each if each.done else _followed(session, each.id, deadline_s, answered=True) for each in begun)
        done.extend(ends)
    finally:
        # If the wait for a later operation times out, this still reports the operations that ended.
        if done:
            present(session, done, single=single)
    _require_success(done)


def _followed(session: Session, operation_id: UUID, deadline_s: float, *, answered: bool) -> "Operation":
    """Return an operation once it is done. WaitEndedError.

    Prints a note whenever the operation has made progress. If the API has `answered` before, this waits while the API
    is unreachable.
    """
    told = None
    while True:
        ask = partial(_asked, session, operation_id, deadline_s)
        found = patiently(session, ask, until_s=deadline_s) if answered else ask()
        answered = True
        left_s = deadline_s - session.clock()
        if found.done:
            return found
        if found.progress.left != told:
            told = found.progress.left
            session.note(f"{found.kind} of {found.target}: {told} of {found.progress.total} left")
        if left_s <= 0:
            raise WaitEndedError(
                f"operation {operation_id} waits for {found.progress.left} of {found.progress.total}; list them with"
                f" `vgpumgr operation show {operation_id}`"
            )
        session.sleep(min(PAUSE_S, left_s))  # an API that shuts down answers early


def _require_success(done: Sequence["Operation"]) -> None:
    failed = []
    for each in done:
        if each.result is None:
            why = f"{each.error.code}: {each.error.detail}" if each.error else "it was cancelled"
            failed.append(f"operation {each.id} {each.state}: {why}")
    if failed:
        raise OperationFailedError("; ".join(failed))


def _asked(session: Session, operation_id: UUID, deadline_s: float) -> "Operation":
    left_s = deadline_s - session.clock()
    return session.client.operation(operation_id, wait_s=int(max(0, min(WAIT_S, left_s))))


def present(session: Session, found: Sequence["Operation"], *, single: bool = True) -> None:
    """Print operations; a table also lists what each operation waits for."""
    if not found:
        return
    show(session, kind_of("operation"), found, single=single)
    if session.output == Output.TABLE:
        for each in (subject for operation in found for subject in operation.progress.waiting_for):
            session.print("  " + "  ".join(f"{name} {'-' if value is None else value}" for name, value in each.items()))
