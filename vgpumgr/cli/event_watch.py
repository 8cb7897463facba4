# SPDX-License-Identifier: Apache-2.0
"""`get events --watch`: events as they happen, until interrupted."""

import json
from typing import TYPE_CHECKING

from vgpumgr.cli.failures import printable
from vgpumgr.cli.kinds import kind_of
from vgpumgr.cli.session import Output, Session, dumped

if TYPE_CHECKING:
    from vgpumgr.wire.resources import Event


def watch_events(session: Session, *, after: int | None, about: str | None, tenant: str | None) -> None:
    """Print one line for each event, beginning after `after`. ApiError ``watch.expired`` if some events are gone.

    After a lost connection it connects again, and continues after the event that was printed last.
    """
    for event in session.client.watch_events(after=after, about=about, tenant=tenant):
        session.print(_line(session.output, event))


def _line(output: str, event: "Event") -> str:
    if output == Output.JSON:
        return json.dumps(dumped(event))
    kind = kind_of("event")
    return printable(kind.name(event) if output == Output.NAME else "  ".join(kind.row(event)))
