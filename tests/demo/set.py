# SPDX-License-Identifier: Apache-2.0
"""Change a tenant's settings while its guest works; run in a lab host.

`python3 -m tests.demo.set green --weight 900 --timeslice-us 2000`
"""

import argparse
import sys

from tests.rig.gpu import Gpu
from vgpumgr.control.model import Tenant
from vgpumgr.errors import VgpumgrError

SETTINGS = {
    "weight": "share against the other tenants' weights, 1..10000",
    "timeslice_us": "longest run before the others are asked, microseconds",
    "cap_us": "most engine time per period, microseconds; 0: no cap",
    "cap_period_us": "period of the cap, microseconds",
    "burst_us": "most cap that can be saved up, microseconds; 0: one timeslice",
}


def describe(tenant: Tenant) -> str:
    return ", ".join(f"{name} {getattr(tenant, name)}" for name in SETTINGS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("tenant")
    for name, meaning in SETTINGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=meaning)
    options = vars(parser.parse_args())
    name = options.pop("tenant")
    changes = {setting: value for setting, value in options.items() if value is not None}
    gpu = Gpu.attached()
    known = gpu.tenants()
    if name not in known:
        print(f"refused: no tenant {name!r}; there are {', '.join(sorted(known))}", file=sys.stderr)
        return 1
    try:
        if changes:
            gpu.tenant(name, **changes)
    except VgpumgrError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    print(f"{name}: {describe(known[name])}\n   -> {describe(gpu.stats(name))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
