# SPDX-License-Identifier: Apache-2.0
"""Translates the API's member names into the command-line options that set them."""

import re
from collections.abc import Collection

from vgpumgr.errors import ApiError

_RENAMED = {
    "deadline_s": "--deadline",
    "executor_memory_max_bytes": "--executor-memory",
    "expires_in_s": "--expires-in",
    "host_state": "--state",
    "labels": "--label",
    "mem_bytes": "--memory",
    "name": "NAME",
    "profiles": "--profile",
    "scopes": "--scope",
    "subject": "--tenant",
    "vm_uuid": "--vm",
    "window_bytes": "--window",
}
_FIELD = re.compile(r"(?:\$|query)\.([a-z_]+)(?:\[\d+\])?")
"""A member's name. A list's index is left out, because a repeated option has no index."""
_COMPOUND = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")
_PLAIN = {
    "field.invalid": re.compile(r"\b(?:since|until)\b"),
    "host.online": re.compile(r"\bforce\b"),
}
"""Members whose names are also English words, by the code of the refusals in which the word means the member."""


def option_of(member: str) -> str:
    """Return the option that sets a member of a request."""
    return _RENAMED.get(member, "--" + member.replace("_", "-"))


def in_options(error: ApiError, text: str, takes: Collection[str]) -> str:
    """Return a refusal's text with the options in `takes` in place of members. Other members stay unchanged."""

    def typed(member: re.Match[str]) -> str:
        option = option_of(member[0])
        return option if option in takes else member[0]

    for field in {reason.field for reason in error.reasons}:
        member = _FIELD.match(field)
        if member and option_of(member[1]) in takes:
            within = field[member.end() :]  # the key of a label
            text = text.replace(f"{field}: ", f"{option_of(member[1])}{within}: ")
    text = _COMPOUND.sub(typed, text)
    plain = _PLAIN.get(error.code)
    return plain.sub(typed, text) if plain else text
