# SPDX-License-Identifier: Apache-2.0
"""`host doctor`: checks whether this host can run VMs with slices, and says how to repair what is wrong."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vgpumgr.cli.failures import Status
from vgpumgr.cli.session import JsonOutput, JsonOutputOption, Output, Session, begin, table
from vgpumgr.errors import SettingsError, VgpumgrError

if TYPE_CHECKING:
    from vgpumgr.cli.checks import Finding

REPORT_LATE_S = 90
CLOCK_AHEAD_S = 5


def doctor(
    context: typer.Context,
    root: Annotated[str, typer.Option(metavar="DIR", help="check the files below this directory instead")] = "/",
    name: Annotated[str | None, typer.Option("--host", metavar="NAME", help="this host's name in the API")] = None,
    output: JsonOutputOption = JsonOutput.TABLE,
) -> None:
    """Check this GPU host: module, GPUs, kernel, agent, hook, libvirt, last report.

    Exit status 0: all is well; 8: there are only warnings; 1: a check fails.
    """
    from vgpumgr.cli.broker_checks import brokers
    from vgpumgr.cli.checks import local_checks, virsh_refusal
    from vgpumgr.cli.executor_checks import executors

    session = begin(context, output)
    virsh = session.virsh or virsh_refusal
    findings = [
        *local_checks(Path(root), virsh=virsh),
        *executors(Path(root)),
        *brokers(Path(root)),
        report_age(session, name or os.uname().nodename.split(".")[0]),
    ]
    _print(session, findings)
    worst = max(finding.grade for finding in findings)
    raise typer.Exit((Status.OK, Status.WARNINGS, Status.ERROR)[worst])


def report_age(session: Session, name: str) -> "Finding":
    """Check that the API receives this host's reports. Without settings for the API the result is a warning."""
    from vgpumgr.cli.checks import fail, ok, warn

    try:
        host = session.client.host(name)
    except SettingsError as error:
        return warn("report", f"not checked: {error}", "give --url and --token-file to check it")
    except VgpumgrError as error:
        return fail("report", str(error), "give --host NAME if the API knows this host by another name")
    if host.fenced_at is not None:
        todo = f"stop the VMs that have slices, then `vgpumgr host reenroll {host.name}`"
        return fail("report", "this host was fenced: its slices are lost, and the API ignores its reports", todo)
    if host.last_report_at is None:
        return fail("report", f"the API has never received a report of {host.name}", "see the log of vgpumgr-agent")
    age_s = (session.now() - host.last_report_at.astimezone(UTC)).total_seconds()
    if age_s > REPORT_LATE_S:
        return fail("report", f"the last one was {age_s:.0f} s ago", "see the log of vgpumgr-agent")
    if age_s < -CLOCK_AHEAD_S:
        return warn("report", f"the API's clock is {-age_s:.0f} s ahead of this host's", "run an NTP client on both")
    if not host.epoch_confirmed:
        todo = f"if the restored database is right, `vgpumgr host confirm-epoch {host.name}`"
        return warn("report", "the API's database was restored; this host deletes nothing", todo)
    return ok("report", f"the last one was {max(age_s, 0):.0f} s ago")


def _print(session: Session, findings: "Sequence[Finding]") -> None:
    if session.output == Output.JSON:
        session.print_json([asdict(finding) | {"grade": str(finding.grade)} for finding in findings])
        return
    rows = [
        (str(finding.grade), finding.check, finding.found + (f"; {finding.todo}" if finding.todo else ""))
        for finding in findings
    ]
    session.print(table(("RESULT", "CHECK", "FOUND"), rows))
