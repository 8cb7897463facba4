# SPDX-License-Identifier: Apache-2.0
"""`host observe`: records engine runs from the scheduler's tracepoints, and compares them with kernel counters."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from vgpumgr.cli.failures import Status
from vgpumgr.cli.session import JsonOutput, JsonOutputOption, begin, table

if TYPE_CHECKING:
    from vgpumgr.observer.account import Account

_HEADINGS = ("GPU", "TENANT", "SHARE", "RUN-NS", "HOLD-NS", "PARKED-NS", "RUNS", "LONGEST-NS", "OVER-NS", "COUNTERS")
_FAULTS_SHOWN = 5


def observe(
    context: typer.Context,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, metavar="S", help="how long to record")] = 10,
    output: JsonOutputOption = JsonOutput.TABLE,
) -> None:
    """Record every run on this host's GPUs for a while, add them up, and compare with the kernel's counters.

    Run it as root on the GPU host. Exit status 1: a sum differs from its counter, or a run was not recorded.
    """
    from vgpumgr.observer.account import accounts, shares
    from vgpumgr.observer.trace import recorded

    session = begin(context, output)
    with recorded(tracing=session.root / "sys/kernel/tracing") as recording:
        session.sleep(seconds)
    found = accounts(recording.happened)
    part = shares(found)
    if output == JsonOutput.JSON:
        groups = [{**asdict(account), "share": part[account.gpu, account.tenant]} for account in found]
        session.print_json({"lost": recording.lost, "groups": groups})
    else:
        session.print(table(_HEADINGS, [_row(account, part[account.gpu, account.tenant]) for account in found]))
    if recording.lost:
        session.note(f"{recording.lost} events were not recorded; observe for a shorter time")
    for account in found:
        for fault in account.faults[:_FAULTS_SHOWN]:
            session.note(f"{account.gpu} {account.tenant}: {fault}")
    if recording.lost or not all(account.agrees for account in found):
        raise typer.Exit(Status.ERROR)


def _row(account: "Account", share: float) -> tuple[str, ...]:
    return (
        account.gpu,
        account.tenant,
        f"{share:.2%}",
        str(account.run_ns),
        str(account.hold_ns),
        str(account.parked_ns),
        str(account.runs),
        str(account.longest_ns),
        str(account.longest_over_ns),
        "agree" if account.agrees else f"differ by {account.counted_ns - account.total_ns} ns",
    )
