# SPDX-License-Identifier: Apache-2.0
"""Operators' changes of a host's state: cordoned, ready, in maintenance. For draining see `drain`."""

from sqlalchemy.orm import Session

from vgpumgr.wire.resources import Host, HostState
from vgpumgr_api.actors import Actor, require_operator
from vgpumgr_api.fleet import host_states
from vgpumgr_api.fleet.hosts import get_host
from vgpumgr_api.resources.generations import IfMatch, require_match
from vgpumgr_api.resources.lookup import host_named


def cordon_host(session: Session, actor: Actor, name: str, *, if_match: IfMatch) -> Host:
    """Stops a host from taking claims. Also ends maintenance, without taking claims. For operators only."""
    return _set(session, actor, name, HostState.CORDONED, if_match)


def uncordon_host(session: Session, actor: Actor, name: str, *, if_match: IfMatch) -> Host:
    """Lets a host take claims again, whatever its state was. For operators only."""
    return _set(session, actor, name, HostState.READY, if_match)


def maintain_host(session: Session, actor: Actor, name: str, *, if_match: IfMatch) -> Host:
    """Sets a host in maintenance: no VM starts there with a slice, and it may be silent. Refused while it has devices.

    Its claims stay. For operators only.
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
