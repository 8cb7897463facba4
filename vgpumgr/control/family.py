# SPDX-License-Identifier: Apache-2.0
"""Decodes the kernel's answers about a generic netlink family: its number and the numbers of its multicast groups.

Formats: include/uapi/linux/genetlink.h.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from vgpumgr.control import wire
from vgpumgr.errors import ControlProtocolError

CONTROL_FAMILY = 16  # number of the controller, and of its group, which announces new and removed families
DELETE_FAMILY = 2
GET_FAMILY = 3
FAMILY_ID = 1
FAMILY_NAME = 2
_FAMILY_GROUPS = 7
_GROUP_NAME = 1
_GROUP_ID = 2


@dataclass(frozen=True, kw_only=True)
class Family:
    """The numbers of a family, which change when the module is loaded again. `groups`: numbers by name."""

    id: int
    groups: Mapping[str, int]


def decode_family(attributes: bytes) -> Family:
    """Decode an answer or a message of the controller. ControlProtocolError without a number."""
    found = dict(wire.decode_attributes(attributes))
    if FAMILY_ID not in found:
        raise ControlProtocolError("the kernel gave no id for the netlink family")
    groups = {}
    for _, nested in wire.decode_attributes(found.get(_FAMILY_GROUPS, b"")):
        group = dict(wire.decode_attributes(nested))
        name = str(wire.decode_value("string", group.get(_GROUP_NAME, b"")))
        groups[name] = int.from_bytes(group.get(_GROUP_ID, b""), sys.byteorder)
    return Family(id=int.from_bytes(found[FAMILY_ID], sys.byteorder), groups=groups)
