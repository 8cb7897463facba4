# SPDX-License-Identifier: Apache-2.0
"""`host`: commands with which an operator manages hosts."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from vgpumgr.cli.change import GenerationOption, LabelOption, UnlabelOption, labels_patch
from vgpumgr.cli.doctor import doctor
from vgpumgr.cli.drains import begun_or_joined
from vgpumgr.cli.host_audit import audit
from vgpumgr.cli.kinds import checked_name, kind_of
from vgpumgr.cli.make import SecretFileOption, hand_over, request
from vgpumgr.cli.observe import observe
from vgpumgr.cli.operation import present, wait
from vgpumgr.cli.probe_gpu import probe_gpu
from vgpumgr.cli.rehome import rehome
from vgpumgr.cli.session import Output, OutputOption, Session, begin
from vgpumgr.cli.show import show
from vgpumgr.cli.watch import watch
from vgpumgr.durations import parse_duration
from vgpumgr.errors import ArgumentError

if TYPE_CHECKING:
    from vgpumgr.client import Client
    from vgpumgr.client.transport import Match
    from vgpumgr.wire.operations import Operation
    from vgpumgr.wire.resources import Host

host = typer.Typer(
    help="Check, watch, cordon, drain, fence or re-enrol hosts; confirm their epoch; move the claims of a lost GPU.",
    no_args_is_help=True,
)
host.command()(doctor)
host.command()(audit)
host.command()(observe)
host.command("probe-gpu")(probe_gpu)
host.command("rehome")(rehome)
host.command()(watch)


class Then(StrEnum):
    """States of a host after a drain."""

    CORDONED = "cordoned"
    MAINTENANCE = "maintenance"


NameArgument = Annotated[str, typer.Argument(metavar="NAME")]
NamesArgument = Annotated[list[str], typer.Argument(metavar="NAME")]


@host.command("confirm-epoch")
def confirm_epoch(
    context: typer.Context,
    name: NameArgument,
    if_generation: GenerationOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Confirm a host's epoch after a restore of the API's database; it then obeys deletions again."""
    _act(context, [name], if_generation, output, lambda client, name, seen: client.confirm_epoch(name, if_match=seen))


@host.command("cordon")
def cordon(
    context: typer.Context,
    names: NamesArgument,
    if_generation: GenerationOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Cordon hosts: they accept no more claims. Their slices stay."""
    _act(context, names, if_generation, output, lambda client, name, seen: client.cordon(name, if_match=seen))


@host.command("uncordon")
def uncordon(
    context: typer.Context,
    names: NamesArgument,
    if_generation: GenerationOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let hosts accept claims again, after a cordon, a drain or maintenance."""
    _act(context, names, if_generation, output, lambda client, name, seen: client.uncordon(name, if_match=seen))


@host.command("maintenance")
def maintenance(
    context: typer.Context,
    names: NamesArgument,
    if_generation: GenerationOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put hosts into maintenance: no VM starts with their slices, and missing reports are expected.

    Their VMs must have stopped.
    """
    _act(context, names, if_generation, output, lambda client, name, seen: client.maintenance(name, if_match=seen))


@host.command("drain")
def drain(
    context: typer.Context,
    names: NamesArgument,
    deadline: Annotated[
        str | None, typer.Option(metavar="DURATION", help="the drain fails after this time; default 1d")
    ] = None,
    then: Annotated[Then | None, typer.Option(help="state of a host after the drain; default cordoned")] = None,
    wait_s: Annotated[
        float | None,
        typer.Option("--wait", min=0, metavar="SECONDS", help="wait until no slice is left, at most this long"),
    ] = None,
    label: LabelOption = None,
    unlabel: UnlabelOption = None,
    if_generation: GenerationOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Cordon hosts and wait until their slices are gone. Deletes none: move the VMs, or delete their slices.

    A drain already under way is joined, unless the options differ.
    """
    from vgpumgr.wire.operations import HostDrain

    session = begin(context, output)
    _check(names, if_generation)
    deadline_s = None if deadline is None else parse_duration(deadline)
    body = request(HostDrain, deadline_s=deadline_s, then=then and then.value, labels=labels_patch(label, unlabel))
    begun: list[Operation] = []
    try:
        begun.extend(begun_or_joined(session, name, body, if_generation) for name in names)
    finally:
        # If a later drain is refused, this still reports the drains that began.
        if wait_s is None or len(begun) < len(names):
            present(session, begun, single=len(names) == 1)
    if wait_s is not None:
        wait(session, begun, wait_s, single=len(names) == 1)


def _act(
    context: typer.Context,
    names: Sequence[str],
    if_generation: int | None,
    output: Output,
    do: "Callable[[Client, str, Match], Host]",
) -> None:
    session = begin(context, output)
    _check(names, if_generation)
    changed: list[Host] = []
    try:
        changed.extend(do(session.client, name, _seen(session, name, if_generation)) for name in names)
    finally:
        # If a later change is refused, this still reports the changes that were made.
        if changed:
            show(session, kind_of("host"), changed, single=len(names) == 1)


def _check(names: Sequence[str], if_generation: int | None) -> None:
    """Check the names. ArgumentError for a host named twice, and for a generation with several hosts."""
    for name in names:
        checked_name(name, "host")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ArgumentError(f"{twice} is given twice; name each host once")
    if if_generation is not None and len(names) > 1:
        raise ArgumentError("--if-generation takes a single host")


def _seen(session: Session, name: str, if_generation: int | None) -> "Match":
    return session.client.host(name).etag if if_generation is None else if_generation


@host.command("fence")
def fence(
    context: typer.Context,
    name: NameArgument,
    confirm: Annotated[str, typer.Option(metavar="NAME", help="repeat its name, to confirm that it is powered off")],
    force: Annotated[
        bool,
        typer.Option("--force", help="even if it reported within the last 90 s; its VMs may then run twice"),
    ] = False,
    if_generation: GenerationOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Declare a host dead: its slices are lost, their quota returns, and its credential stops working.

    Power it off first, at its BMC or plug, and make sure that it stays off, because the owners of its VMs may then
    claim again and start them elsewhere. Lost slices do not come back; `vgpumgr get slices --host NAME --state lost`
    lists them. `vgpumgr host reenroll NAME` takes a repaired host back, `vgpumgr delete host NAME` removes one that
    will not return.
    """
    from vgpumgr.wire.resources import HostFence

    session = begin(context, output)
    checked_name(name, "host")
    if confirm != name:
        raise ArgumentError(f"--confirm {confirm[:80]!r} is not {name}; check which host is dead")
    body = request(HostFence, confirm=confirm, force=force)
    seen = session.client.host(name).etag if if_generation is None else if_generation
    show(session, kind_of("host"), [session.client.fence(name, body, if_match=seen)], single=True)


@host.command("reenroll")
def reenroll(
    context: typer.Context, name: NameArgument, token_file: SecretFileOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Give a host a new one-time token. Its present credential stops working at once."""
    session = begin(context, output)
    checked = checked_name(name, "host")
    hand_over(session, "host", token_file, lambda: session.client.reenroll(checked), "enroll_token")
