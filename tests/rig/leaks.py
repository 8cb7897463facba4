# SPDX-License-Identifier: Apache-2.0
"""Memory that the kernel lost, on a kernel with kmemleak (`lab run --debug-kernel`).

The lab also looks for leaks at the end of each run. This module looks while vgpumgr.ko is loaded, so that the stacks
name its functions.
"""

import time
from pathlib import Path

KMEMLEAK = Path("/sys/kernel/debug/kmemleak")
_OLD_ENOUGH_S = 6
"""kmemleak ignores memory younger than five seconds: its address may be in a register."""


def leaks() -> str:
    """Describe each allocation that nothing refers to any more; empty on kernels without kmemleak."""
    if not KMEMLEAK.exists():
        return ""
    time.sleep(_OLD_ENOUGH_S)
    # kmemleak reports only blocks that did not change since the scan before
    for _ in range(2):
        KMEMLEAK.write_text("scan")
    return KMEMLEAK.read_text(errors="replace")
