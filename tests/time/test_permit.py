# SPDX-License-Identifier: Apache-2.0
"""An unused permit expires unless it was renewed. The slices wait at the same time."""

import time

from tests.rig.client import client
from tests.rig.gpu import ADDRESS, Gpu


def test_a_permit_expires_after_two_minutes(gpu: Gpu) -> None:
    gpu.sysfs.write_gpu(ADDRESS, "attach", "permit")
    early, late, renewed = (gpu.slice() for _ in range(3))
    for uuid in (early, late, renewed):
        gpu.sysfs.grant(uuid)
    time.sleep(115)
    assert client(early, "info").status == 0
    gpu.sysfs.renew(renewed)
    time.sleep(6)
    assert gpu.sysfs.permit_s(late) == 0
    assert "not permitted" in client(late, "info", expected=(3,)).output.lower()
    assert client(renewed, "info").status == 0
