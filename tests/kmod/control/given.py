# SPDX-License-Identifier: Apache-2.0
"""The starting point of the tests of netlink and sysfs."""

import uuid as uuids
from typing import Any

from tests.rig.gpu import ADDRESS as GPU
from vgpumgr.control.sysfs import Sysfs

NOWHERE = "0000:00:1f.7"
UNKNOWN = "c0ffee00-0000-4000-8000-00000000ffff"
GOOD: dict[str, Any] = {"weight": 100, "timeslice_us": 1000}


def new_slice(host: Sysfs, type_id: str = "mem16m") -> str:
    uuid = str(uuids.uuid4())
    host.create(GPU, type_id, uuid)
    return uuid
