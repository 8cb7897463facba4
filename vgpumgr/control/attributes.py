# SPDX-License-Identifier: Apache-2.0
"""What is known of the attributes of a netlink family."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


@dataclass(frozen=True)
class AttributeSet:
    """One set of attributes. `types` leaves out what is u64, as most are."""

    numbers: type[IntEnum]
    types: Mapping[IntEnum, str]

    def type_of(self, number: int) -> str:
        """Return the attribute's type in the words of vgpumgr.yaml, "" for a number this version does not know."""
        if number not in self.numbers._value2member_map_:
            return ""
        return self.types.get(self.numbers(number), "u64")

    def field_of(self, number: int) -> str:
        """Return the attribute's name as in vgpumgr.yaml; its number for one this version does not know."""
        if number not in self.numbers._value2member_map_:
            return f"attribute {number}"
        return self.numbers(number).name.lower().replace("_", "-")
