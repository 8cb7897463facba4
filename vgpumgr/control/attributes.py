# SPDX-License-Identifier: Apache-2.0
"""The attributes of a netlink family: their numbers, names and types."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


@dataclass(frozen=True)
class AttributeSet:
    """One set of attributes. `types` leaves out u64, which most attributes have."""

    numbers: type[IntEnum]
    types: Mapping[IntEnum, str]

    def type_of(self, number: int) -> str:
        """Return the name of the attribute's type in vgpumgr.yaml, or "" if its number is unknown."""
        if number not in self.numbers._value2member_map_:
            return ""
        return self.types.get(self.numbers(number), "u64")

    def field_of(self, number: int) -> str:
        """Return the attribute's name in vgpumgr.yaml; for an unknown attribute a text with its number."""
        if number not in self.numbers._value2member_map_:
            return f"attribute {number}"
        return self.numbers(number).name.lower().replace("_", "-")
