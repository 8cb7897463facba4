# SPDX-License-Identifier: Apache-2.0
"""The parameters that a policy sets in the scheduler core for one group: weight, cap and reservation.

The members have the names and units of the core's group parameters, where their meaning is documented.
"""

from __future__ import annotations

from dataclasses import dataclass

from vgpumgr.ranges import PERMILLE, WEIGHT_MAX, WEIGHT_MIN


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Weight relative to other groups; cap and reservation in ns of engine time per period in ns, 0 for none.

    `burst_ns`: how much unused cap can be saved up, 0 for the core's default.
    """

    weight: int
    cap_ns: int = 0
    cap_period_ns: int = 0
    burst_ns: int = 0
    reserve_ns: int = 0
    reserve_period_ns: int = 0

    def __post_init__(self) -> None:
        if not WEIGHT_MIN <= self.weight <= WEIGHT_MAX:
            raise ValueError(f"weight {self.weight} is not in {WEIGHT_MIN}..{WEIGHT_MAX}")
        if self.burst_ns < 0 or (self.burst_ns and not self.cap_ns):
            raise ValueError(f"a burst of {self.burst_ns} ns needs a cap, and is at least 0")
        for what, part_ns, period_ns in (
            ("cap", self.cap_ns, self.cap_period_ns),
            ("reservation", self.reserve_ns, self.reserve_period_ns),
        ):
            if not 0 <= part_ns <= period_ns:
                raise ValueError(f"{what} {part_ns} ns is not in 0..{period_ns} ns, its period")
        if self.cap_ns and self.cap_ns * self.reserve_period_ns < self.reserve_ns * self.cap_period_ns:
            raise ValueError(
                f"the cap, {self.cap_ns} ns of {self.cap_period_ns}, is below the reservation,"
                f" {self.reserve_ns} ns of {self.reserve_period_ns}"
            )


def permille(what: str, value: int, *, least: int = 0) -> int:
    """Return `value` if it is a whole permille of the engine; otherwise a ValueError names `what`."""
    if type(value) is not int or not least <= value <= PERMILLE:
        raise ValueError(f"{what} {value!r} is not a whole number in {least}..{PERMILLE} permille")
    return value
