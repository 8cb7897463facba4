# SPDX-License-Identifier: Apache-2.0
"""The options that filter `get`, with the names that the API uses. Each kind lists the filters it supports."""

import re
from collections.abc import Mapping
from typing import Any

from vgpumgr.cli.kinds import Kind, checked_name
from vgpumgr.cli.session import Session
from vgpumgr.cli.units import NO_LABEL, parse_instant, parse_selector, parse_uuid
from vgpumgr.errors import ArgumentError

NAMES = ("tenant", "host", "account", "profile", "subject", "target")


def chosen(session: Session, kind: Kind, given: Mapping[str, Any], *, one: bool) -> dict[str, Any]:
    """Return the filters of a list. `one`: a single object is requested, which accepts no filters. ArgumentError."""
    filters = {option: value for option, value in given.items() if value not in (None, False, [])}
    for option in filters:
        if one or option not in kind.filters:
            where = "for one object" if option in kind.filters else f"for {kind.plural}"
            raise ArgumentError(f"--{option.replace('_', '-')} has no meaning {where}; leave it out")
    return {option: _checked(session, kind, option, value) for option, value in filters.items()}


def _checked(session: Session, kind: Kind, option: str, value: Any) -> Any:
    if option in NAMES:
        return checked_name(value, option)
    if option == "vm":
        return parse_uuid(value, "VM")
    if option in ("since", "until"):
        return parse_instant(value, f"--{option}", session.now()).isoformat()
    if option == "selector":
        return _selector(parse_selector(value))
    known = kind.choices.get(option)
    if known is not None and value not in known:
        raise ArgumentError(f"--{option} {value[:40]!r}: {kind.plural} are {', '.join(known)}")
    return value


def _selector(labels: Mapping[str, str]) -> str:
    from vgpumgr.wire.common import LABEL_KEY, LABEL_VALUE
    from vgpumgr.wire.selector import SELECTOR_MAX

    if len(labels) > SELECTOR_MAX:
        raise ArgumentError(f"--selector: at most {SELECTOR_MAX} labels")
    for key, value in labels.items():
        if not (re.fullmatch(LABEL_KEY, key) and re.fullmatch(LABEL_VALUE, value)):
            raise ArgumentError(f"--selector {f'{key}={value}'[:80]!r}: {NO_LABEL}")
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
