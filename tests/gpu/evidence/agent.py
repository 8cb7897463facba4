# SPDX-License-Identifier: Apache-2.0
"""T9's foreign process: it takes a tenant's open file and sets the timeslice of a channel group on it.

`python -m tests.gpu.evidence.agent PID FD CLIENT GROUP TIMESLICE_US` prints JSON: the driver's `status`, or the
`errno` if the kernel refused the access.
"""

from __future__ import annotations

import json
import sys

from vgpumgr.gpu import abi


def main() -> int:
    pid, fd, client, group, timeslice_us = map(int, sys.argv[1:])
    try:
        taken = abi.take_file(pid, fd)
        said = {"status": abi.set_timeslice(taken, client=client, group=group, timeslice_us=timeslice_us)}
    except OSError as error:
        said = {"errno": error.errno or 0}
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
