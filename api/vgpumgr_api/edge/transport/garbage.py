# SPDX-License-Identifier: Apache-2.0
"""Settings of Python's cyclic garbage collector for a process that serves requests.

By default the collector examines the new objects whenever 700 more objects are alive, and occasionally all objects,
which blocks requests for 0.1 s. Nearly all of those objects are created at startup and live until the end. Requests
leave very little cyclic garbage: 8 objects for a TLS connection, 60 if its handshake fails.
"""

import gc

YOUNG = 5000
"""The number of additional live objects after which the collector runs again. Until then, objects of failed handshakes
occupy up to 10 MiB of memory of OpenSSL.
"""


def collect_seldom() -> None:
    """Collects garbage rarely from now on. Objects that exist now are never examined again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
