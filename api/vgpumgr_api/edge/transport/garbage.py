# SPDX-License-Identifier: Apache-2.0
"""Python's collector of cyclic garbage, in a process that answers requests.

By itself it looks at what came since it looked last as often as 700 objects more are alive, and every now and then at
all there are, for 0.1 s in which nobody is answered. Nearly all of those were made at the start and live until the end,
and requests leave next to nothing to it: 8 objects for a connection over TLS, 60 if that goes wrong.
"""

import gc

YOUNG = 5000
"""So many objects more than when it looked last are alive when it looks again. Those of failed handshakes hold
memory of OpenSSL, 10 MiB until then.
"""


def collect_seldom() -> None:
    """For the rest of the process: what there is now is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
