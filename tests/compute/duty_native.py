# SPDX-License-Identifier: Apache-2.0
"""compute/broker/duty.c, compiled for tests in virtual time."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from tests.compute.executor_rig import COMPUTE, build

MS = 1_000_000
NEVER = 2**64 - 1


class CDuty(ctypes.Structure):
    """struct duty"""


CDuty._fields_ = [
    ("weight", ctypes.c_uint32),
    ("cap_ns", ctypes.c_uint64),
    ("cap_period_ns", ctypes.c_uint64),
    ("burst_ns", ctypes.c_uint64),
    ("works", ctypes.c_bool),
    ("open", ctypes.c_bool),
    ("credit_ns", ctypes.c_int64),
    ("obtained_ns", ctypes.c_uint64),
    ("open_ns", ctypes.c_uint64),
    ("next", ctypes.POINTER(CDuty)),
    ("rest", ctypes.c_uint64),
]


class CDuties(ctypes.Structure):
    """struct duties"""

    _fields_ = (
        ("first", ctypes.POINTER(CDuty)),
        ("period_ns", ctypes.c_uint64),
        ("now_ns", ctypes.c_uint64),
        ("refill_ns", ctypes.c_uint64),
    )


def _load() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder) / "duty.so", COMPUTE / "broker" / "duty.c", flags=("-fPIC", "-shared"))
        loaded = ctypes.CDLL(str(library))
    for name in ("duties_next_ns", "duty_timeslice_us"):
        getattr(loaded, name).restype = ctypes.c_uint64
    loaded.duty_may_run.restype = ctypes.c_bool
    return loaded


lib = _load()


@dataclass
class Tenant:
    """A tenant and its gate. Closing and opening the gate take time."""

    weight: int = 1
    cap: Fraction | None = None
    works: bool = True
    burst_ns: int = 0
    asked: tuple[int, bool] | None = None
    duty: CDuty = field(default_factory=CDuty)

    def __post_init__(self) -> None:
        self.set_terms()
        self.duty.open = True
        self.duty.works = self.works

    def set_terms(self) -> None:
        self.duty.weight = self.weight
        self.duty.cap_ns = self.cap.numerator * MS if self.cap else 0
        self.duty.cap_period_ns = self.cap.denominator * MS if self.cap else 0
        self.duty.burst_ns = self.burst_ns


@dataclass
class Gpu:
    """Plays how firmware.c operates the gates, at exactly the times that duty.c returns."""

    tenants: Sequence[Tenant]
    period_ns: int = 40 * MS
    gate_ns: int = MS // 2
    now_ns: int = 0
    gates: int = 0
    duties: CDuties = field(default_factory=CDuties)

    def __post_init__(self) -> None:
        lib.duties_configure(ctypes.byref(self.duties), ctypes.c_uint64(self.period_ns), ctypes.c_uint64(0))
        for tenant in self.tenants:
            lib.duties_add(ctypes.byref(self.duties), ctypes.byref(tenant.duty))

    def settle(self) -> None:
        lib.duties_settle(ctypes.byref(self.duties), ctypes.c_uint64(self.now_ns))

    def next_ns(self) -> int:
        return int(lib.duties_next_ns(ctypes.byref(self.duties)))

    def run(self, span_ns: int) -> None:
        end_ns = self.now_ns + span_ns
        while self.now_ns < end_ns:
            self._review()
            asked = [tenant.asked[0] for tenant in self.tenants if tenant.asked]
            self.now_ns = min([end_ns, self.next_ns(), *asked])
            self.settle()
            for tenant in self.tenants:
                if tenant.asked and tenant.asked[0] <= self.now_ns:
                    tenant.duty.open = tenant.asked[1]
                    tenant.asked = None

    def _review(self) -> None:
        for tenant in self.tenants:
            may = lib.duty_may_run(ctypes.byref(self.duties), ctypes.byref(tenant.duty))
            if not tenant.asked and may != tenant.duty.open and (may or tenant.duty.works):
                tenant.asked = (self.now_ns + self.gate_ns, may)
                self.gates += 1

    def timeslice_us(self, tenant: Tenant) -> int:
        return int(lib.duty_timeslice_us(ctypes.byref(self.duties), ctypes.byref(tenant.duty)))
