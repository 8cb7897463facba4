# SPDX-License-Identifier: Apache-2.0
"""What operators make of a host: cordoned, ready again, in maintenance. Draining is in `drain`."""

from sqlalchemy.orm import Session

from vgpumgr.wire.resources import Host, HostState
from vgpumgr_api.actors import Actor, require_operator
from vgpumgr_api.fleet import host_states
from vgpumgr_api.fleet.hosts import get_host
from vgpumgr_api.resources.generations import IfMatch, require_match
from vgpumgr_api.resources.lookup import host_named


def cordon_host(session: Session, actor: Actor, name: str, *, if_match: IfMatch) -> Host:
    """Lets a host take no more claims, or ends its maintenance without that. Operators only."""
    return _set(session, actor, name, HostState.CORDONED, if_match)


def uncordon_host(session: Session, actor: Actor, name: str, *, if_match: IfMatch) -> Host:
    """Lets a host take claims again, whatever it was before. Operators only."""
    return _set(session, actor, name, HostState.READY, if_match)


def maintain_host(session: Session, actor: Actor, name: str, *, if_match: IfMatch) -> Host:
    """Lets nothing start on a host, and expects nothing to be heard of it. Refused while it has devices of slices.

    Its claims stay. Operators only.
    """
    return _set(session, actor, name, HostState.MAINTENANCE, if_match)


def _set(session: Session, actor: Actor, name: str, state: HostState, if_match: IfMatch) -> Host:
    require_operator(actor)
    host = host_named(session, name, lock=True)
    require_match(session, if_match, host.id, host.generation)
    host_states.require_not_draining(session, host)
    if state is HostState.MAINTENANCE:
        host_states.require_unused(session, host)
    host_states.enter(session, actor, host, state)
    return get_host(session, actor, name)
