# SPDX-License-Identifier: Apache-2.0
"""The broker's configuration: reads and checks the TOML file, and makes the document that the broker accepts.

    [tenants.blue]
    weight = 3
    memory = "2G"

Only the scheduler can check some rules, for example whether all reservations fit. Therefore this module asks the
scheduler's core, and the broker asks the core again before it changes anything.
"""

import grp
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from vgpumgr import ranges
from vgpumgr.broker.control import field_invalid
from vgpumgr.broker.places import Programs, pocl_library
from vgpumgr.broker.problems import problem
from vgpumgr.errors import ArgumentError, SettingsError

MAX_BYTES = 1 << 20
NS_PER_US = 1_000
MIB = 1 << 20
NO_GROUP = 2**32 - 1
NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
PROBLEMS_SHOWN = 5


def _size(value: object) -> object:
    from vgpumgr.sizes import parse_size

    if not isinstance(value, str):
        return value
    try:
        return parse_size(value)
    except ArgumentError as error:
        raise ValueError(str(error)) from None


Size = Annotated[int, BeforeValidator(_size)]
"""Bytes: a whole number, or a text like "64M"."""
Microseconds = Annotated[int, Field(ge=0, le=86_400_000_000)]
Permille = Annotated[int, Field(ge=0, le=ranges.PERMILLE)]


class Table(BaseModel):
    """A table of the file. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Accelerator(Table):
    """The accelerator that tenants share.

    `library`: the OpenCL library; PoCL by default. `processors`: the number of host processors that the accelerator
    consists of, 0 if it is a GPU. By default all processors with PoCL, else 0. `nvidia`: the N of the GPU's
    /dev/nvidiaN, whose channels the gate stops.
    """

    library: str = ""
    processors: Annotated[int, Field(ge=0, le=65536)] | None = None
    nvidia: Annotated[int, Field(ge=0, le=31)] | None = None


class Engine(Table):
    """How turns are assigned, and how work that does not end in time is stopped; see docs/compute.md."""

    grace_us: Annotated[int, Field(ge=0, le=10_000_000)] = 2_000
    chunk_us: Annotated[int, Field(ge=ranges.MAX_CHUNK_US_MIN, le=ranges.MAX_CHUNK_US_MAX)] = 5_000
    min_chunk_us: Annotated[int, Field(ge=ranges.MAX_CHUNK_US_MIN, le=ranges.MAX_CHUNK_US_MAX)] = 100
    switch_cost_us: Annotated[int, Field(ge=0, le=10_000)] = 100
    reserve_limit_permille: Annotated[int, Field(ge=0, le=ranges.RESERVE_LIMIT_PERMILLE_MAX)] = 500
    gate_limit_us: Annotated[int, Field(ge=10_000, le=60_000_000)] = 2_000_000
    free_permille: Annotated[int, Field(ge=0, le=1_000_000)] = 20
    allowance_permille: Annotated[int, Field(ge=0, le=1_000_000)] = 500
    allowance_burst_us: Microseconds = 1_000_000
    watch_every_us: Annotated[int, Field(ge=10_000, le=60_000_000)] = 250_000
    penalty_us: Annotated[int, Field(ge=0, le=600_000_000)] = 1_000_000

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.chunk_us < self.grace_us:
            raise ValueError(
                f"chunk_us is {self.chunk_us}, and must be at least grace_us, {self.grace_us},"
                " because it includes the grace and the time to freeze a program"
            )
        return self


class Native(Table):
    """How tenants whose programs hold the GPU themselves take turns; see docs/native.md."""

    turns: Literal["firmware", "gate"] = "firmware"
    period_us: Annotated[int, Field(ge=20_000, le=100_000)] = 40_000


class Tenant(Table):
    """What one tenant gets.

    `weight` and `share_permille` are two names of the same parameter: only the ratio to the values of other tenants
    counts. A tenant with `reserve_us` is a latency tenant. `native`: the tenant's programs hold the GPU themselves.
    """

    weight: Annotated[int, Field(ge=ranges.WEIGHT_MIN, le=ranges.WEIGHT_MAX)] | None = None
    share_permille: Annotated[int, Field(ge=1, le=ranges.PERMILLE)] | None = None
    timeslice_us: Annotated[int, Field(ge=ranges.TIMESLICE_US_MIN, le=ranges.TIMESLICE_US_MAX)] = 5_000
    cap_permille: Annotated[int, Field(ge=1, le=ranges.PERMILLE)] | None = None
    cap_period_us: Annotated[int, Field(ge=ranges.CAP_PERIOD_US_MIN, le=ranges.CAP_PERIOD_US_MAX)] = 100_000
    burst_us: Annotated[int, Field(ge=0, le=ranges.BURST_US_MAX)] = 0
    reserve_us: Annotated[int, Field(ge=1, le=ranges.RESERVE_US_MAX)] | None = None
    reserve_period_us: (
        Annotated[int, Field(ge=ranges.RESERVE_PERIOD_US_MIN, le=ranges.RESERVE_PERIOD_US_MAX)] | None
    ) = None
    hold_max_us: Annotated[int, Field(ge=0, le=ranges.HOLD_MAX_US_MAX)] = 0
    inversion_permille: Permille = 0
    memory: Annotated[Size, Field(ge=MIB, le=2**62)] = 1024 * MIB
    window: Annotated[Size, Field(ge=4 * MIB, le=16384 * MIB, multiple_of=4096)] = 64 * MIB
    compile_cache: Annotated[Size, Field(ge=0, le=2**40)] = 64 * MIB
    max_processes: Annotated[int, Field(ge=1, le=64)] = 16
    processes_per_minute: Annotated[int, Field(ge=1, le=60_000)] = 600
    socket_mode: Annotated[str, Field(pattern=r"^0[0-7]{3}$")] = "0600"
    socket_group: str = ""
    native: bool = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.weight is not None and self.share_permille is not None:
            raise ValueError("weight and share_permille are the same; give one of them")
        if (self.reserve_us is None) != (self.reserve_period_us is None):
            raise ValueError("reserve_us and reserve_period_us go together; give both or none")
        if self.reserve_us is None and (self.hold_max_us or self.inversion_permille):
            raise ValueError("hold_max_us and inversion_permille are for a tenant with reserve_us")
        return self

    @property
    def parts(self) -> int:
        """The weight."""
        return self.weight or self.share_permille or 100


class Configuration(Table):
    """The whole file. `run_directory`: where the sockets are."""

    run_directory: str = ""
    accelerator: Accelerator = Accelerator()
    engine: Engine = Engine()
    native: Native = Native()
    tenants: Annotated[dict[Annotated[str, Field(pattern=NAME)], Tenant], Field(min_length=1, max_length=256)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        native = [name for name, tenant in self.tenants.items() if tenant.native]
        if native and self.accelerator.nvidia is None:
            raise ValueError(
                f"tenants.{native[0]}.native: give accelerator.nvidia, the N of the /dev/nvidiaN that its programs hold"
            )
        if native and self.native.turns == "firmware":
            self._check_firmware_keeps_it()
        return self

    def _check_firmware_keeps_it(self) -> None:
        """Refuse settings that need turns: with "firmware" the GPU supports only weights of native tenants."""
        for name, tenant in self.tenants.items():
            if not tenant.native:
                raise ValueError(
                    'native.turns: with "firmware" the GPU divides its time by itself, so there are no turns for'
                    f' tenants.{name}, which is not native; use turns = "gate", or make all tenants native'
                )
            if tenant.reserve_us is not None:
                raise ValueError(
                    f'tenants.{name}.reserve_us: the GPU keeps no reservations by itself; use native.turns = "gate"'
                )


def read(path: Path) -> Configuration:
    """Read and check a file. SettingsError names the field."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{path}: {(error.strerror or str(error)).lower()}; give a configuration file") from None
    if len(content) > MAX_BYTES:
        raise SettingsError(f"{path} is larger than {MAX_BYTES} bytes; check that it is a configuration file")
    try:
        found = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}; correct it") from None
    try:
        return Configuration.model_validate(found)
    except ValidationError as error:
        problems = [problem(each) for each in error.errors()]
        more = len(problems) - PROBLEMS_SHOWN
        shown = "; ".join(problems[:PROBLEMS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        raise SettingsError(f"{path}: {shown}") from None


def document(configuration: Configuration, programs: Programs) -> dict[str, Any]:
    """Return the broker's document, with defaults filled in, in bytes and nanoseconds.

    SettingsError names what this machine lacks. BrokerRefusedError names the resource of which it has too little.
    """
    library = _library(configuration)
    nvidia = configuration.accelerator.nvidia
    return {
        "programs": {
            "supervisor": str(programs.supervisor),
            "child": str(programs.child),
        }
        | ({} if library is None else {"library": str(library)})
        | ({} if nvidia is None else {"nvidia": nvidia}),
        "engine": _engine(configuration.engine, _processors(configuration.accelerator, library)),
        "native": {
            "turns": configuration.native.turns,
            "period_ns": configuration.native.period_us * NS_PER_US,
        },
        "tenants": [_tenant(name, tenant) for name, tenant in configuration.tenants.items()],
    }


def check_by_scheduler(settings: Mapping[str, Any]) -> bool:
    """Refuse a document that the scheduler would refuse. BrokerRefusedError names the file's field.

    Return False if the core is not compiled here; then only the broker can check.
    """
    try:
        from vgpumgr.broker.admission import check
    except ImportError:
        return False
    check(settings)
    return True


def _library(configuration: Configuration) -> Path | None:
    """Return the library whose functions children call; None if all programs hold the GPU themselves."""
    accelerator = configuration.accelerator
    if not accelerator.library:
        is_needed = not all(tenant.native for tenant in configuration.tenants.values())
        return pocl_library() if is_needed else None
    library = Path(accelerator.library)
    if not library.is_absolute():
        raise SettingsError(f"accelerator.library: {library} is not an absolute path")
    if not library.is_file():
        raise SettingsError(f"accelerator.library: {library} does not exist")
    return library


def _processors(accelerator: Accelerator, library: Path | None) -> int:
    if accelerator.processors is None:
        return len(os.sched_getaffinity(0)) if library is not None and "pocl" in library.name else 0
    there = os.cpu_count() or 1
    if accelerator.processors > there:
        raise field_invalid(
            "accelerator.processors",
            f"{accelerator.processors} is more than the {there} of this machine; omit it to use all",
        )
    return accelerator.processors


def _engine(engine: Engine, processors: int) -> dict[str, int]:
    return {
        "grace_ns": engine.grace_us * NS_PER_US,
        "early_ns": 200 * NS_PER_US,
        "gate_limit_ns": engine.gate_limit_us * NS_PER_US,
        "chunk_ns": engine.chunk_us * NS_PER_US,
        "min_chunk_ns": engine.min_chunk_us * NS_PER_US,
        "switch_cost_ns": engine.switch_cost_us * NS_PER_US,
        "reserve_limit_permille": engine.reserve_limit_permille,
        "processors": processors,
        "free_permille": engine.free_permille,
        "allowance_permille": engine.allowance_permille,
        "allowance_burst_ns": engine.allowance_burst_us * NS_PER_US,
        "watch_every_ns": engine.watch_every_us * NS_PER_US,
        "penalty_ns": engine.penalty_us * NS_PER_US,
    }


def _tenant(name: str, tenant: Tenant) -> dict[str, Any]:
    capped = tenant.cap_permille is not None
    band: Literal["latency", "fair"] = "latency" if tenant.reserve_us else "fair"
    return {
        "name": name,
        "band": band,
        "weight": tenant.parts,
        "timeslice_ns": tenant.timeslice_us * NS_PER_US,
        "cap_ns": (tenant.cap_permille or 0) * tenant.cap_period_us,
        "cap_period_ns": tenant.cap_period_us * NS_PER_US if capped else 0,
        "burst_ns": tenant.burst_us * NS_PER_US if capped else 0,
        "reserve_ns": (tenant.reserve_us or 0) * NS_PER_US,
        "reserve_period_ns": (tenant.reserve_period_us or 0) * NS_PER_US,
        "hold_max_ns": tenant.hold_max_us * NS_PER_US,
        "inversion_permille": tenant.inversion_permille,
        "inversion_burst_ns": 0,
        "memory_bytes": tenant.memory,
        "window_bytes": tenant.window,
        "compile_cache_bytes": tenant.compile_cache,
        "max_processes": tenant.max_processes,
        "process_interval_ns": 60 * 10**9 // tenant.processes_per_minute,
        "process_burst": max(2 * tenant.max_processes, 10),
        "socket_mode": int(tenant.socket_mode, 8),
        "socket_gid": _group(name, tenant.socket_group),
        "native": tenant.native,
    }


def _group(tenant: str, name: str) -> int:
    if not name:
        return NO_GROUP
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise SettingsError(f"tenants.{tenant}.socket_group: unknown group {name[:80]!r}") from None
