# SPDX-License-Identifier: Apache-2.0
"""Types that several models use. Shares are permille of one GPU's time; memory is in bytes; instants are UTC."""

import re
from datetime import MAXYEAR, UTC, datetime
from enum import StrEnum
from typing import Annotated, Generic, Self, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from vgpumgr import ranges

PERMILLE = ranges.PERMILLE
MEM_BYTES_MAX = 1 << 50
WINDOW_BYTES = 64 << 20
"""The size of the windows of a slice that has an executor: BAR2 of its virtual function, see VGPU_WINDOWS_MAX in
kmod/uapi/vgpu_device.h.
"""
TIMESLICE_US_MIN, TIMESLICE_US_MAX = 100, ranges.TIMESLICE_US_MAX
"""The range of timeslices that an operator may set; the kernel accepts shorter timeslices, too."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", description="a DNS label")]
ExternalId = Annotated[
    str,
    Field(
        min_length=1,
        max_length=255,
        # Invisible characters would make two ids look alike, and bidirectional controls would disguise one.
        pattern=r"^[^\x00-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$",
        description="what another system calls a tenant, in printable characters",
    ),
]
HostRef = Annotated[
    str, Field(pattern=r"^[0-9A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?$", description="UUID or name of a host")
]
PciAddress = Annotated[str, Field(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")]
CardName = Annotated[str, Field(max_length=80, pattern=r"^[!-~]*$")]
PciIds = Annotated[
    str, Field(pattern=r"^([0-9a-f]{4}:[0-9a-f]{4})?$", description="vendor:device, as `lspci -n` shows it")
]
MdevTypeId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}$")]
Share = Annotated[int, Field(ge=1, le=PERMILLE, description="permille of one GPU's time")]
MemBytes = Annotated[int, Field(ge=1, le=MEM_BYTES_MAX)]
ExecutorMemory = Annotated[
    int, Field(ge=0, le=MEM_BYTES_MAX, description="limit of host memory; 0: as in the host's settings")
]
ExecutorTasks = Annotated[
    int, Field(ge=0, le=1 << 22, description="limit of processes and threads; 0: as in the host's settings")
]
ExecutorCpu = Annotated[
    int,
    Field(
        ge=0, le=1_000_000, description="limit of processor time, 1000 is one processor; 0: as in the host's settings"
    ),
]
TimesliceUs = Annotated[int, Field(ge=TIMESLICE_US_MIN, le=TIMESLICE_US_MAX)]
Weight = Annotated[int, Field(ge=ranges.WEIGHT_MIN, le=ranges.WEIGHT_MAX)]
ReservePeriodUs = Annotated[
    int, Field(ge=1000, le=1_000_000, description="the longest that a latency slice waits for its share")
]
FairRatio = Annotated[
    int,
    Field(
        ge=PERMILLE,
        le=ranges.WEIGHT_MAX,  # if one tenant has the whole GPU, this is the weight of its group
        description="permille of a GPU's time that fair slices may claim; above 1000 they overcommit it",
    ),
]
LABEL_KEY, LABEL_VALUE = r"[a-z0-9]([a-z0-9._/-]{0,61}[a-z0-9])?", r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
LabelKey = Annotated[str, Field(pattern=f"^{LABEL_KEY}$")]
LabelValue = Annotated[str, Field(pattern=f"^{LABEL_VALUE}$")]
LABELS_MAX = 64
LabelsPatch = Annotated[
    dict[LabelKey, LabelValue | None],
    Field(max_length=LABELS_MAX, description="a merge patch: null removes a label; labels that are left out stay"),
]
COUNTER_MAX = (1 << 63) - 1
Generation = Annotated[int, Field(ge=0, le=COUNTER_MAX, description="grows with every change; part of the ETag")]


_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _dated(said: object) -> object:
    """Refuse a number in a string: pydantic takes such a string for seconds since 1970, or for milliseconds."""
    if isinstance(said, str) and not _DATE.match(said):
        raise ValueError("not an instant as in 2026-11-21T12:00:00Z")
    return said


def _in_utc(instant: datetime) -> datetime:
    """Return an instant in UTC. The limits leave a day to spare for time zones and arithmetic."""
    if not 1 < instant.year < MAXYEAR:
        raise ValueError("not between the years 2 and 9998")
    return instant.astimezone(UTC)


Instant = Annotated[AwareDatetime, BeforeValidator(_dated), AfterValidator(_in_utc)]
"""An instant. After validation it is in UTC."""


class Request(BaseModel):
    """What a client sends. Strict: a number in quotes is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Answer(BaseModel):
    """What the API answers, and what a client parses."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    _etag: str = PrivateAttr("")

    @property
    def etag(self) -> str:
        """The ETag of the answer, for `if_match` of a client's later calls; "" for an item of a list."""
        return self._etag

    def tagged(self, etag: str) -> Self:
        """Stores the ETag that this answer came with, and returns the answer."""
        self._etag = etag
        return self


class Mode(StrEnum):
    """Whether a slice may use more than its share when nobody else wants the engine."""

    STRICT = "strict"
    FAIR = "fair"


class Workload(StrEnum):
    """What a claim is for. A VM gets a device; a process or container of the host opens the GPU itself."""

    VM = "vm"
    PROCESS = "process"


BROKER = "broker"
"""The backend of a GPU that is for processes."""

PROCESS_TYPE = "process"
"""What stands in the place of an mdev type where there is no device."""


class Band(StrEnum):
    """How a slice competes: by weight, or ahead of the others as long as its reserved share lasts."""

    FAIR = "fair"
    LATENCY = "latency"


class ExecutorState(StrEnum):
    """The state of the host process that runs a slice's work. `absent`: there is no device, or its engine needs no
    process.
    """

    ABSENT = "absent"
    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"


class IdentifiedBy(StrEnum):
    """What identifies a GPU. If only its address does, nobody notices when two GPUs of one kind change places."""

    UUID = "uuid"
    SERIAL = "serial"
    ADDRESS = "address"


class Policy(StrEnum):
    """What a GPU does with time that a slice leaves unused: it gives the time to others that have work, or lets it
    pass.
    """

    BEST_EFFORT = "best_effort"
    EQUAL_SHARE = "equal_share"
    FIXED_SHARE = "fixed_share"


Item = TypeVar("Item", bound=BaseModel)


class Page(Answer, Generic[Item]):
    """Part of a list, in a stable order. `next_page_token` is opaque, and empty at the end."""

    items: list[Item]
    next_page_token: str = ""
