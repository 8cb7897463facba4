# SPDX-License-Identifier: Apache-2.0
"""Objects that people and control planes see, by kind."""

from vgpumgr.wire.resources.events import Event, EventPage
from vgpumgr.wire.resources.gpus import Gpu, GpuPatch, MemoryClass
from vgpumgr.wire.resources.hosts import Host, HostCreate, HostCreated, HostFence, HostPatch, HostState
from vgpumgr.wire.resources.profiles import Profile, ProfileCreate
from vgpumgr.wire.resources.quotas import PROFILES_MAX, Quota, QuotaPatch
from vgpumgr.wire.resources.reservations import Reservation, ReservationCreate
from vgpumgr.wire.resources.slices import (
    BATCH_MAX,
    Enforcement,
    Explanation,
    Level,
    Observation,
    ObservedExecutor,
    Placement,
    Slice,
    SliceBatch,
    SliceCreate,
    SliceMove,
    Slices,
    SliceState,
    SliceTie,
    Tie,
)
from vgpumgr.wire.resources.tenants import Tenant, TenantCreate, TenantKind, TenantPatch
from vgpumgr.wire.resources.tokens import SCOPED, Scope, Token, TokenCreate, TokenCreated, TokenRole
from vgpumgr.wire.resources.usage import Usage

__all__ = [
    "BATCH_MAX",
    "PROFILES_MAX",
    "SCOPED",
    "Enforcement",
    "Event",
    "EventPage",
    "Explanation",
    "Gpu",
    "GpuPatch",
    "Host",
    "HostCreate",
    "HostCreated",
    "HostFence",
    "HostPatch",
    "HostState",
    "Level",
    "MemoryClass",
    "Observation",
    "ObservedExecutor",
    "Placement",
    "Profile",
    "ProfileCreate",
    "Quota",
    "QuotaPatch",
    "Reservation",
    "ReservationCreate",
    "Scope",
    "Slice",
    "SliceBatch",
    "SliceCreate",
    "SliceMove",
    "SliceState",
    "SliceTie",
    "Slices",
    "Tenant",
    "TenantCreate",
    "TenantKind",
    "TenantPatch",
    "Tie",
    "Token",
    "TokenCreate",
    "TokenCreated",
    "TokenRole",
    "Usage",
]
