# SPDX-License-Identifier: Apache-2.0
"""Numbers of the generic netlink family. Made by kmod/uapi/generate from kmod/uapi/vgpumgr.yaml; change that.

Names are those of kmod/uapi/vgpumgr_netlink.h without their prefix.
"""

from collections.abc import Mapping
from enum import IntEnum

from vgpumgr.control.attributes import AttributeSet

FAMILY_NAME = "vgpumgr"
FAMILY_VERSION = 1
EVENTS_GROUP = "events"


class Command(IntEnum):
    """VGPUMGR_CMD_*"""

    GPU_GET = 1
    GPU_SET = 2
    GPU_ADOPT = 3
    GPU_RELEASE = 4
    TENANT_GET = 8
    TENANT_SET = 9
    TENANT_DEL = 10
    SLICE_GET = 16
    SLICE_SET = 17
    CREATED_NTF = 32
    REMOVED_NTF = 33
    REVOKED_NTF = 34
    FAULT_NTF = 35
    RESET_NTF = 36
    THROTTLED_NTF = 37
    UNTHROTTLED_NTF = 38
    OVERRUN_NTF = 39
    LOST_NTF = 40


class Attach(IntEnum):
    """enum vgpumgr_attach"""

    ANY = 0
    PERMIT = 1


class Policy(IntEnum):
    """enum vgpumgr_policy"""

    BEST_EFFORT = 0
    EQUAL_SHARE = 1
    FIXED_SHARE = 2


class Mode(IntEnum):
    """enum vgpumgr_mode"""

    FAIR = 0
    STRICT = 1


class Band(IntEnum):
    """enum vgpumgr_band"""

    FAIR = 0
    LATENCY = 1


class GpuAttribute(IntEnum):
    """VGPUMGR_A_GPU_*"""

    PAD = 1
    NAME = 2
    ENGINE = 3
    MEMORY_TOTAL = 4
    MEMORY_RESERVED = 5
    ATTACH = 6
    TIMESLICE_MIN_US = 7
    MAX_CHUNK_US = 8
    WALL_NS = 9
    IDLE_NS = 10
    SWITCHES = 11
    PICKS = 12
    SLICES = 13
    TENANTS = 14
    POLICY = 15
    PLACES = 16
    RESERVE_LIMIT_PERMILLE = 17
    IF_GENERATION = 18
    GENERATION = 19
    EVENT_SEQ = 20
    WEDGED = 21
    DRIVER = 22
    ADOPTED = 23


class TenantAttribute(IntEnum):
    """VGPUMGR_A_TENANT_*"""

    PAD = 1
    GPU = 2
    TENANT = 3
    WEIGHT = 4
    TIMESLICE_US = 5
    CAP_US = 6
    CAP_PERIOD_US = 7
    BURST_US = 8
    IF_GENERATION = 9
    GENERATION = 10
    CONFIGURED = 11
    SLICES = 12
    RUN_NS = 13
    RUNS = 14
    UNCUT_RUNS = 15
    SHORT_UNCUT_RUNS = 16
    LONGEST_RUN_NS = 17
    THROTTLES = 18
    THROTTLED_NS = 19
    SWITCHES = 20
    LAG_NS = 21
    RUN_LENGTH = 22
    MODE = 23
    BAND = 24
    RESERVE_US = 25
    RESERVE_PERIOD_US = 26
    HOLD_MAX_US = 27
    INVERSION_PERMILLE = 28
    INVERSION_BURST_US = 29
    LATENCY_NS = 30
    DEMOTIONS = 31
    HOLDS = 32
    HOLD_NS = 33
    FILLS = 34
    INVERSION_NS = 35
    GHOST_NS = 36
    THROTTLED = 37
    ID = 38


class RunLengthAttribute(IntEnum):
    """VGPUMGR_A_RUN_LENGTH_*"""

    PAD = 1
    START_NS = 2
    COUNT = 3


class SliceAttribute(IntEnum):
    """VGPUMGR_A_SLICE_*"""

    PAD = 1
    GPU = 2
    UUID = 3
    TENANT = 4
    WEIGHT = 5
    CAP_US = 6
    CAP_PERIOD_US = 7
    BURST_US = 8
    OPEN = 9
    SCHEDULED = 10
    MEMORY_BYTES = 11
    ERROR = 12
    ERROR_INDEX = 13
    RUN_NS = 14
    ITEMS = 15
    DMA_BYTES = 16
    DOORBELLS = 17
    ERRORS = 18
    RESETS = 19
    DROPPED = 20
    QUEUED = 21
    GHOST_NS = 22
    THROTTLED = 23


class EventAttribute(IntEnum):
    """VGPUMGR_A_EVENT_*"""

    PAD = 1
    SEQ = 2
    TIME_NS = 3
    COUNT = 4
    GPU = 5
    TENANT = 6
    SLICE = 7
    PID = 8
    COMM = 9
    ERROR = 10
    ERROR_INDEX = 11
    LENGTH_NS = 12
    LIMIT_NS = 13


GPU = AttributeSet(
    GpuAttribute,
    types={
        GpuAttribute.PAD: "pad",
        GpuAttribute.NAME: "string",
        GpuAttribute.ENGINE: "string",
        GpuAttribute.ATTACH: "u32",
        GpuAttribute.TIMESLICE_MIN_US: "u32",
        GpuAttribute.MAX_CHUNK_US: "u32",
        GpuAttribute.SLICES: "u32",
        GpuAttribute.TENANTS: "u32",
        GpuAttribute.POLICY: "u32",
        GpuAttribute.PLACES: "u32",
        GpuAttribute.RESERVE_LIMIT_PERMILLE: "u32",
        GpuAttribute.WEDGED: "flag",
        GpuAttribute.DRIVER: "string",
        GpuAttribute.ADOPTED: "flag",
    },
)
TENANT = AttributeSet(
    TenantAttribute,
    types={
        TenantAttribute.PAD: "pad",
        TenantAttribute.GPU: "string",
        TenantAttribute.TENANT: "string",
        TenantAttribute.WEIGHT: "u32",
        TenantAttribute.TIMESLICE_US: "u32",
        TenantAttribute.CAP_US: "u32",
        TenantAttribute.CAP_PERIOD_US: "u32",
        TenantAttribute.BURST_US: "u32",
        TenantAttribute.CONFIGURED: "flag",
        TenantAttribute.SLICES: "u32",
        TenantAttribute.LAG_NS: "s64",
        TenantAttribute.RUN_LENGTH: "nest",
        TenantAttribute.MODE: "u32",
        TenantAttribute.BAND: "u32",
        TenantAttribute.RESERVE_US: "u32",
        TenantAttribute.RESERVE_PERIOD_US: "u32",
        TenantAttribute.HOLD_MAX_US: "u32",
        TenantAttribute.INVERSION_PERMILLE: "u32",
        TenantAttribute.INVERSION_BURST_US: "u32",
        TenantAttribute.THROTTLED: "flag",
    },
)
RUN_LENGTH = AttributeSet(
    RunLengthAttribute,
    types={
        RunLengthAttribute.PAD: "pad",
    },
)
SLICE = AttributeSet(
    SliceAttribute,
    types={
        SliceAttribute.PAD: "pad",
        SliceAttribute.GPU: "string",
        SliceAttribute.UUID: "string",
        SliceAttribute.TENANT: "string",
        SliceAttribute.WEIGHT: "u32",
        SliceAttribute.CAP_US: "u32",
        SliceAttribute.CAP_PERIOD_US: "u32",
        SliceAttribute.BURST_US: "u32",
        SliceAttribute.OPEN: "flag",
        SliceAttribute.SCHEDULED: "flag",
        SliceAttribute.ERROR: "u32",
        SliceAttribute.ERROR_INDEX: "u32",
        SliceAttribute.QUEUED: "u32",
        SliceAttribute.THROTTLED: "flag",
    },
)
EVENT = AttributeSet(
    EventAttribute,
    types={
        EventAttribute.PAD: "pad",
        EventAttribute.COUNT: "u32",
        EventAttribute.GPU: "string",
        EventAttribute.TENANT: "string",
        EventAttribute.SLICE: "string",
        EventAttribute.PID: "u32",
        EventAttribute.COMM: "string",
        EventAttribute.ERROR: "u32",
        EventAttribute.ERROR_INDEX: "u32",
    },
)

ATTRIBUTES: Mapping[Command, AttributeSet] = {
    Command.GPU_GET: GPU,
    Command.GPU_SET: GPU,
    Command.GPU_ADOPT: GPU,
    Command.GPU_RELEASE: GPU,
    Command.TENANT_GET: TENANT,
    Command.TENANT_SET: TENANT,
    Command.TENANT_DEL: TENANT,
    Command.SLICE_GET: SLICE,
    Command.SLICE_SET: SLICE,
    Command.CREATED_NTF: EVENT,
    Command.REMOVED_NTF: EVENT,
    Command.REVOKED_NTF: EVENT,
    Command.FAULT_NTF: EVENT,
    Command.RESET_NTF: EVENT,
    Command.THROTTLED_NTF: EVENT,
    Command.UNTHROTTLED_NTF: EVENT,
    Command.OVERRUN_NTF: EVENT,
    Command.LOST_NTF: EVENT,
}
