# SPDX-License-Identifier: Apache-2.0
"""The options that choose what `get` lists, as the API takes them. Each kind knows which it has."""

from collections.abc import Mapping
from typing import Any

from vgpumgr.cli.kinds import Kind, checked_name
from vgpumgr.cli.session import Session
from vgpumgr.cli.units import parse_instant, parse_labels, parse_uuid
from vgpumgr.errors import ArgumentError

NAMES = ("tenant", "host", "account", "profile", "subject")


def chosen(session: Session, kind: Kind, given: Mapping[str, Any], *, one: bool) -> dict[str, Any]:
    """Return the filters of a list. `one`: a single object is asked for, which takes none. ArgumentError."""
    filters = {option: value for option, value in given.items() if value not in (None, False, [])}
    for option in filters:
        if one or option not in kind.filters:
            where = "for one object" if option in kind.filters else f"for {kind.plural}"
            raise ArgumentError(f"--{option} means nothing {where}; leave it out")
    return {option: _checked(session, kind, option, value) for option, value in filters.items()}


def _checked(session: Session, kind: Kind, option: str, value: Any) -> Any:
    if option in NAMES:
        return checked_name(value, option)
    if option == "vm":
        return parse_uuid(value, "VM")
    if option in ("since", "until"):
        return parse_instant(value, f"--{option}", session.now()).isoformat()
    if option == "selector":
        return ",".join(f"{key}={label}" for key, label in sorted(parse_labels(value).items()))
    known = kind.choices.get(option)
    if known is not None and value not in known:
        raise ArgumentError(f"--{option} {value[:40]!r}: {kind.plural} are {', '.join(known)}")
    return value
