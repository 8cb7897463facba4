# SPDX-License-Identifier: Apache-2.0
"""What the kernel takes of parameters of GPUs, tenants and slices. Made by kmod/uapi/generate; change what that reads.

Whoever checks a parameter before the kernel does takes its range from here. A cap or a reservation of 0 is none.
"""

PERMILLE = 1000
"""All of one GPU's time, in the unit of shares."""

TIMESLICE_US_MIN = 10
"""On every GPU; each has a `timeslice_min_us` of its own, which is no less."""

RESERVE_PERIOD_US_MIN = 100
"""On every GPU; it is also at least four `max_chunk_us`."""

MAX_CHUNK_US_MIN = 1
MAX_CHUNK_US_MAX = 10_000_000
PLACES_MAX = 10_000
RESERVE_LIMIT_PERMILLE_MAX = 750
WEIGHT_MIN = 1
WEIGHT_MAX = 10_000
TIMESLICE_US_MAX = 1_000_000
CAP_US_MAX = 1_000_000
CAP_PERIOD_US_MIN = 100
CAP_PERIOD_US_MAX = 1_000_000
BURST_US_MAX = 8_000_000
RESERVE_US_MAX = 4_000_000
RESERVE_PERIOD_US_MAX = 4_000_000
HOLD_MAX_US_MAX = 1_000_000
INVERSION_PERMILLE_MAX = 1_000
INVERSION_BURST_US_MAX = 8_000_000
