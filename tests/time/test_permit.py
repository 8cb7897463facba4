# SPDX-License-Identifier: Apache-2.0
"""A permit that nobody used in time is worth nothing. Two minutes cost little in virtual time."""

import time

from tests.rig.client import client
from tests.rig.gpu import ADDRESS, Gpu


def test_a_permit_expires_after_two_minutes(gpu: Gpu) -> None:
    gpu.sysfs.write_gpu(ADDRESS, "attach", "permit")
    uuid = gpu.slice()
    gpu.sysfs.grant(uuid)
    time.sleep(115)
    assert client(uuid, "info").status == 0
    gpu.sysfs.grant(uuid)
    time.sleep(121)
    assert gpu.sysfs.permit_s(uuid) == 0
    assert "not permitted" in client(uuid, "info", expected=(3,)).output.lower()
