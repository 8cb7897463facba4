# SPDX-License-Identifier: Apache-2.0
"""The fields of a scenario, their limits and what they mean; docs/simulator.md describes them for people.

Times become nanoseconds, percentages and rates millionths, see quantity.py. Unknown fields are refused.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from vgpumgr.ranges import WEIGHT_MAX, WEIGHT_MIN
from vgpumgr.sim.quantity import MILLION, parse_percent, parse_rate, parse_time

MAX_GROUPS = 4096
MAX_SLICES = 4096
MAX_SEEDS = 1000
MAX_KERNELS = 100_000
NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


def _quantity(parse: Callable[[object], int]) -> BeforeValidator:
    def checked(value: object) -> int:
        try:
            return parse(value)
        except ValueError as error:
            raise PydanticCustomError("quantity", "{expected}", {"expected": str(error)}) from None

    return BeforeValidator(checked)


Time = Annotated[int, _quantity(parse_time)]
Positive = Annotated[Time, Field(gt=0)]
Percent = Annotated[int, _quantity(parse_percent)]
Share = Annotated[Percent, Field(gt=0, le=MILLION)]
Rate = Annotated[int, _quantity(parse_rate)]
Count = Annotated[StrictInt, Field(ge=1)]
Name = Annotated[StrictStr, Field(pattern=NAME)]
Text = Annotated[StrictStr, Field(max_length=2000)]


class Part(BaseModel):
    """Base of all parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Choice(Part):
    """A part of which exactly one field is given."""

    @property
    def chosen(self) -> str:
        """The name of the field that is given."""
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)

    @model_validator(mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        given = [name for name in cls.model_fields if name in value] if isinstance(value, dict) else []
        unknown = isinstance(value, dict) and not set(value) <= set(cls.model_fields)
        if isinstance(value, dict) and not unknown and len(given) != 1:
            names = ", ".join(cls.model_fields)
            raise PydanticCustomError("choice", "{expected}", {"expected": f"expected exactly one of {names}"})
        return value


class Engine(Part):
    """The accelerator, and what it costs to switch from one slice to another."""

    kind: Literal["non_preemptible", "splittable", "preemptible"] = "splittable"
    max_chunk: Positive = 1_000_000
    min_chunk: Positive = 1_000
    switch_cost: Time = 0
    split_cost: Time = 0
    preempt_latency: Time = 0


# The schedulers that are the kernel module's core: item by item, and by leases.
CORE_SCHEDULERS = ("vgpumgr", "vgpumgr_lease")


class Scheduler(Part):
    """The scheduler: vgpumgr's core with its policy, or a baseline with its own parameters."""

    name: StrictStr = "vgpumgr"
    policy: Literal["best_effort", "equal_share", "fixed_share"] = "best_effort"
    places: Annotated[StrictInt, Field(ge=1, le=MAX_GROUPS)] | None = None
    reserve_limit: Share | None = None
    parameters: dict[StrictStr, Any] = {}


class Closed(Part):
    """The next request arrives `think` after the previous request is done."""

    think: Time = 0


class Poisson(Part):
    rate: Rate


class Periodic(Part):
    """`phase`: when the first request arrives; by default the seed decides."""

    rate: Rate
    phase: Time | None = None


class OnOff(Part):
    rate: Rate
    mean_on: Positive
    mean_off: Positive


class Diurnal(Part):
    rate: Rate
    amplitude: Share
    period: Positive
    phase: Percent = 0


class Step(Part):
    rate: Rate
    at: Time
    factor: Annotated[StrictInt | StrictFloat, Field(gt=0, le=100)] = 2


class Arrivals(Choice):
    """When requests arrive."""

    closed: Closed | None = None
    poisson: Poisson | None = None
    periodic: Periodic | None = None
    on_off: OnOff | None = None
    diurnal: Diurnal | None = None
    step: Step | None = None


def _listed(value: object) -> object:
    return value if isinstance(value, list) else [value]


class Backlog(Part):
    """Work without end: items of these sizes, again and again. The slice sleeps for `nap` after `nap_every` items."""

    items: Annotated[list[Positive], Field(min_length=1, max_length=1000), BeforeValidator(_listed)]
    depth: Annotated[StrictInt, Field(ge=1, le=65536)] = 8
    nap_every: Annotated[StrictInt, Field(ge=1, le=65536)] | None = None
    nap: Positive | None = None

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.nap_every is None) != (self.nap is None):
            raise PydanticCustomError("nap", "{expected}", {"expected": "expected nap and nap_every together"})
        return self


class Kernels(Part):
    """A request with this number, sum and median of kernel durations, which are log-normal."""

    count: Annotated[StrictInt, Field(ge=1, le=MAX_KERNELS)]
    total: Positive
    median: Positive

    @model_validator(mode="after")
    def _lawful(self) -> Self:
        if self.total < self.count * self.median:
            raise PydanticCustomError("law", "{expected}", {"expected": "expected a total of at least count x median"})
        return self


class Workload(Part):
    """The work of a slice: one of `backlog`, `model`, `kernels` and `trace`. The other fields say how it is launched.

    `claims`: what the scheduler is told about the kernels after a kernel. `hint`: the duration that it is told.
    """

    backlog: Backlog | None = None
    model: StrictStr | None = None
    kernels: Kernels | None = None
    trace: StrictStr | None = None
    arrivals: Arrivals | None = None
    launch: Time | None = None
    sync_every: Annotated[StrictInt, Field(ge=0, le=MAX_KERNELS)] | None = None
    queue: Annotated[StrictInt, Field(ge=1, le=65536)] | None = None
    jitter: Annotated[Percent, Field(le=MILLION // 4)] | None = None
    claims: Literal["true", "none", "more_follows"] = "true"
    hint: Time = 0

    @property
    def kind(self) -> str:
        """The one of the four fields that is given."""
        return next(name for name in _KINDS if getattr(self, name) is not None)

    @property
    def always(self) -> bool:
        """Whether the slice always has work."""
        return self.backlog is not None and self.backlog.nap is None

    @model_validator(mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        given = [name for name in _KINDS if name in value] if isinstance(value, dict) else ["?"]
        if len(given) != 1:
            raise PydanticCustomError(
                "choice", "{expected}", {"expected": f"expected exactly one of {', '.join(_KINDS)}"}
            )
        useless = _USELESS.get(given[0], ())
        for name in useless:
            if name in value:
                expected = f"expected no `{name}` beside `{given[0]}`"
                raise PydanticCustomError("choice", "{expected}", {"expected": expected})
        return value


_KINDS = ("backlog", "model", "kernels", "trace")
_USELESS = {"backlog": ("arrivals", "launch", "sync_every", "queue", "claims"), "trace": ("arrivals", "sync_every")}


class Reservation(Part):
    """A reservation of `budget` in every `period`, served before other work (a constant bandwidth server)."""

    budget: Positive
    period: Positive


class Inversion(Part):
    """Limits how long a tenant may wait for tenants that fill its gaps: `share` of all time, and `burst` saved up."""

    share: Share
    burst: Time = 0


class Limits(Part):
    """The parameters of a tenant that can change while it works. None: the parameter keeps its value."""

    weight: Annotated[StrictInt, Field(ge=WEIGHT_MIN, le=WEIGHT_MAX)] | None = None
    timeslice: Positive | None = None
    cap: Annotated[Percent, Field(ge=0, le=MILLION)] | None = None
    cap_period: Positive | None = None
    burst: Time | None = None
    band: Literal["fair", "latency"] | None = None
    mode: Literal["strict", "fair"] | None = None
    priority: Annotated[StrictInt, Field(ge=0, le=9)] | None = None
    reservation: Reservation | None = None
    hold_max: Time | None = None
    inversion: Inversion | None = None


class Slice(Part):
    """One device of a tenant."""

    weight: Annotated[StrictInt, Field(ge=WEIGHT_MIN, le=WEIGHT_MAX)] = 1
    cap: Share | None = None
    cap_period: Positive | None = None
    burst: Time | None = None


def _slices(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MAX_SLICES:
            raise PydanticCustomError("count", "{expected}", {"expected": f"expected 1 to {MAX_SLICES}, or a list"})
        return [{}] * value
    return value


class Tenant(Limits):
    """A tenant, or `count` copies of it, which differ in their names and in what the seed decides.

    The tenant begins to work at `starts`, and is gone from `leaves` on.
    """

    name: Name
    count: Annotated[StrictInt, Field(ge=1, le=MAX_GROUPS)] = 1
    starts: Time = 0
    leaves: Positive | None = None
    slices: Annotated[list[Slice], Field(min_length=1, max_length=MAX_SLICES), BeforeValidator(_slices)] = [Slice()]
    workload: Workload


class Change(Limits):
    """New limits of a tenant from `at` on."""

    at: Positive
    tenant: Name


class Target(Part):
    """What a tenant should get. `tenant` "*": each tenant."""

    tenant: Annotated[StrictStr, Field(pattern=r"^(\*|[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)$")] = "*"
    mean: Positive | None = None
    p99: Positive | None = None
    slowdown_mean: Annotated[StrictInt | StrictFloat, Field(ge=1)] | None = None
    slowdown_p99: Annotated[StrictInt | StrictFloat, Field(ge=1)] | None = None
    share: Share | None = None
    share_error: Share | None = None
    longest_run: Positive | None = None


OF_REQUESTS = frozenset({"mean", "p99", "slowdown_mean", "slowdown_p99"})
"""Targets that only a tenant with requests can meet."""


class Scenario(Part):
    """A whole scenario."""

    title: Annotated[StrictStr, Field(max_length=200)] = ""
    about: Text = ""
    engine: Engine = Engine()
    scheduler: Scheduler = Scheduler()
    duration: Positive
    warm_up: Time = 0
    seed: Annotated[StrictInt, Field(ge=0, lt=2**32)] = 1
    seeds: Annotated[StrictInt, Field(ge=1, le=MAX_SEEDS)] = 5
    tenants: Annotated[list[Tenant], Field(min_length=1, max_length=MAX_GROUPS)]
    changes: Annotated[list[Change], Field(max_length=1000)] = []
    targets: Annotated[list[Target], Field(max_length=1000)] = []
    window: Positive = 100_000_000
