# SPDX-License-Identifier: Apache-2.0
"""Change a tenant's weight or timeslice while its guest works; run in a lab host.

`python3 -m tests.demo.set green --weight 900 --timeslice-us 2000`
"""

import argparse
import sys

from tests.rig.gpu import Gpu
from vgpumgr.errors import VgpumgrError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("tenant")
    parser.add_argument("--weight", type=int)
    parser.add_argument("--timeslice-us", type=int)
    parser.add_argument("--cap-us", type=int)
    parser.add_argument("--cap-period-us", type=int)
    options = vars(parser.parse_args())
    tenant = options.pop("tenant")
    changes = {name: value for name, value in options.items() if value is not None}
    try:
        Gpu.attached().tenant(tenant, **changes)
    except VgpumgrError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
