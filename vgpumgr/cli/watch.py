# SPDX-License-Identifier: Apache-2.0
"""`host watch`: prints the kernel module's events as they happen."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from vgpumgr.cli.failures import printable
from vgpumgr.cli.session import JsonOutput, JsonOutputOption, begin

if TYPE_CHECKING:
    from vgpumgr.control.model import Event, Snapshot


def watch(
    context: typer.Context,
    seconds: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="stop after this time without an event")
    ] = None,
    output: JsonOutputOption = JsonOutput.TABLE,
) -> None:
    """Print what happens to this host's GPUs, tenants and slices, one line each, until interrupted.

    It prints slices that come, go, are taken from a VM, fail or are reset, caps that run out, and runs that were too
    long. If the kernel lost events, a line says how many objects there are now. With -o json it prints one object a
    line.
    """
    from vgpumgr.control.events import Watch
    from vgpumgr.control.netlink import Control

    session = begin(context, output)
    with Control() as control, Watch(control) as events:
        while (seen := events.wait(seconds)) is not None:
            session.print(json.dumps(asdict(seen)) if output == JsonOutput.JSON else printable(_line(seen)))


def _line(seen: "Event | Snapshot") -> str:
    from vgpumgr.control.events import describe
    from vgpumgr.control.model import Event

    if not isinstance(seen, Event):
        return f"{seen.sequence} all: {len(seen.gpus)} GPUs, {len(seen.tenants)} tenants, {len(seen.slices)} slices"
    return f"{seen.sequence} {describe(seen)}"
