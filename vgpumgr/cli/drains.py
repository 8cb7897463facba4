# SPDX-License-Identifier: Apache-2.0
"""Starts a drain or joins the drain under way, so that an interrupted command can be repeated."""

from typing import TYPE_CHECKING

from vgpumgr.cli.session import Session
from vgpumgr.errors import ApiError

if TYPE_CHECKING:
    from vgpumgr.wire.operations import HostDrain, Operation


def begun_or_joined(session: Session, name: str, drain: "HostDrain", if_generation: int | None) -> "Operation":
    """Return the operation that drains this host. ApiError if the drain under way differs from `drain`.

    Only the members that were given are compared: a `drain` without members joins any drain.
    """
    seen = session.client.host(name).etag if if_generation is None else if_generation
    try:
        return session.client.drain_host(name, drain, if_match=seen)
    except ApiError as error:
        if error.code != "host.draining":
            raise
        found = next(session.client.operations(kind="host.drain", target=name, state="running"), None)
        if found is None or not drain.model_dump(exclude_unset=True).items() <= found.request.items():
            raise
    session.note(f"operation {found.id} drains {name} already")
    return found
