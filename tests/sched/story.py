# SPDX-License-Identifier: Apache-2.0
"""Stories: the tenants that share an engine, their work, and the events that happen to them.

A story prints as readable text. hypothesis writes stories (`stories()`), and `host.Host` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from vgpumgr.sched.core import Band, CapParams, ItemInfo, Mode, Policy, SchedParams

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000


def span(ns: int) -> str:
    if ns >= MS and ns % (MS // 100) == 0:
        return f"{ns / MS:g} ms"
    if ns >= US and ns % (US // 100) == 0:
        return f"{ns / US:g} us"
    return f"{ns} ns"


def describe_cap(cap: CapParams) -> str:
    if not cap.cap_ns:
        return "no cap"
    burst = f", burst {span(cap.burst_ns)}" if cap.burst_ns else ""
    return f"cap {span(cap.cap_ns)} per {span(cap.cap_period_ns)}{burst}"


NO_CAP = CapParams()


@dataclass(frozen=True, kw_only=True)
class Work:
    """Items of these lengths, over and over; a nap after every `nap_every` of them (0: never).

    With `request` they are announced in requests of that many items: all but the last of a request are flagged "more
    follows". With `hint_ns` they are announced to take that long. Each item has its own kernel id, or the items take
    turns with `kernels` ids.
    """

    items: tuple[int, ...] = (100 * US,)
    splittable: bool = False
    nap_every: int = 0
    nap_ns: int = 0
    starts_ns: int = 0
    request: int = 0
    hint_ns: int = 0
    kernels: int = 0

    def item(self, number: int) -> ItemInfo | None:
        """The announcement of the item with this number."""
        if not self.request:
            return None
        more = (number + 1) % self.request != 0
        return ItemInfo(kernel_id=number % (self.kernels or len(self.items)), more=more, hint_ns=self.hint_ns)

    def __str__(self) -> str:
        items = ", ".join(span(i) for i in self.items)
        kind = " (splittable)" if self.splittable else ""
        nap = f", naps {span(self.nap_ns)} after every {self.nap_every}" if self.nap_every else ""
        start = f", from {span(self.starts_ns)}" if self.starts_ns else ""
        request = f", announced in requests of {self.request}" if self.request else ""
        hint = f", said to take {span(self.hint_ns)}" if self.hint_ns else ""
        return f"items of {items}{kind}{nap}{start}{request}{hint}"


@dataclass(frozen=True, kw_only=True)
class SliceOf:
    weight: int = 1
    cap: CapParams = NO_CAP
    work: Work = field(default_factory=Work)

    def __str__(self) -> str:
        return f"weight {self.weight}, {describe_cap(self.cap)}, {self.work}"


@dataclass(frozen=True, kw_only=True)
class Latency:
    """The additional settings of a tenant of band L."""

    reserve_ns: int
    period_ns: int
    hold_max_ns: int = 0
    inversion_permille: int = 0
    inversion_burst_ns: int = 0

    def __str__(self) -> str:
        hold = f", holds {span(self.hold_max_ns)}" if self.hold_max_ns else ""
        inversion = f", inversion {self.inversion_permille} permille" if self.inversion_permille else ""
        return f"reserve {span(self.reserve_ns)} per {span(self.period_ns)}{hold}{inversion}"


@dataclass(frozen=True, kw_only=True)
class Tenant:
    weight: int = 1
    timeslice_ns: int = MS
    cap: CapParams = NO_CAP
    mode: Mode = Mode.FAIR
    latency: Latency | None = None
    slices: tuple[SliceOf, ...] = (SliceOf(),)

    @property
    def band(self) -> Band:
        return Band.LATENCY if self.latency else Band.FAIR

    def __str__(self) -> str:
        latency = f", {self.latency}" if self.latency else ""
        return f"weight {self.weight}, timeslice {span(self.timeslice_ns)}, {describe_cap(self.cap)}{latency}"


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event for the tenant number `who`, modulo the number of present tenants."""

    at_ns: int
    who: int = 0


@dataclass(frozen=True, kw_only=True)
class Reweight(Event):
    weight: int

    def __str__(self) -> str:
        return f"tenant {self.who} gets weight {self.weight}"


@dataclass(frozen=True, kw_only=True)
class NewTimeslice(Event):
    timeslice_ns: int

    def __str__(self) -> str:
        return f"tenant {self.who} gets timeslice {span(self.timeslice_ns)}"


@dataclass(frozen=True, kw_only=True)
class NewCap(Event):
    cap: CapParams

    def __str__(self) -> str:
        return f"tenant {self.who} gets {describe_cap(self.cap)}"


@dataclass(frozen=True, kw_only=True)
class NewReserve(Event):
    latency: Latency | None

    def __str__(self) -> str:
        return f"tenant {self.who} gets {self.latency or 'no reservation'}"


@dataclass(frozen=True, kw_only=True)
class ChangeSlice(Event):
    which: int = 0
    weight: int
    cap: CapParams = NO_CAP

    def __str__(self) -> str:
        return f"slice {self.which} of tenant {self.who} gets weight {self.weight}, {describe_cap(self.cap)}"


@dataclass(frozen=True, kw_only=True)
class OpenSlice(Event):
    slice: SliceOf

    def __str__(self) -> str:
        return f"tenant {self.who} opens a slice: {self.slice}"


@dataclass(frozen=True, kw_only=True)
class CloseSlice(Event):
    which: int = 0

    def __str__(self) -> str:
        return f"slice {self.which} of tenant {self.who} is removed"


@dataclass(frozen=True, kw_only=True)
class Claim(Event):
    """An announcement about a slice's first item, true or not; None announces only that it exists."""

    which: int = 0
    item: ItemInfo | None

    def __str__(self) -> str:
        return f"slice {self.which} of tenant {self.who} claims to have {self.item or 'an item'}"


@dataclass(frozen=True, kw_only=True)
class EndRequest(Event):
    which: int = 0

    def __str__(self) -> str:
        return f"slice {self.which} of tenant {self.who} says that its request is over"


@dataclass(frozen=True, kw_only=True)
class Withdraw(Event):
    """The item disappears, even while it executes, and comes back later."""

    which: int = 0
    nap_ns: int

    def __str__(self) -> str:
        return f"slice {self.which} of tenant {self.who} withdraws its item for {span(self.nap_ns)}"


@dataclass(frozen=True, kw_only=True)
class Arrive(Event):
    tenant: Tenant

    def __str__(self) -> str:
        return f"a tenant arrives: {self.tenant}, slices: " + "; ".join(str(s) for s in self.tenant.slices)


@dataclass(frozen=True, kw_only=True)
class Depart(Event):
    def __str__(self) -> str:
        return f"tenant {self.who} departs"


@dataclass(frozen=True, kw_only=True)
class Story:
    engine: SchedParams
    tenants: tuple[Tenant, ...]
    events: tuple[Event, ...] = ()
    duration_ns: int = 50 * MS

    def __str__(self) -> str:
        engine = self.engine
        lines = [
            f"An engine with pieces of {span(engine.min_chunk_ns)} to {span(engine.max_chunk_ns)}"
            + (", which splits every item" if engine.splits else "")
            + (f", {engine.policy.name.lower()}" if engine.policy else "")
            + (f", {engine.places} places" if engine.places else "")
            + f", for {span(self.duration_ns)}."
        ]
        for i, tenant in enumerate(self.tenants):
            lines.append(f"  tenant {i}: {tenant}")
            lines += [f"    slice {j}: {s}" for j, s in enumerate(tenant.slices)]
        lines += [f"  at {span(e.at_ns)}: {e}" for e in self.sorted_events()]
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """How hypothesis prints a failing story."""
        for line in str(self).splitlines():
            printer.break_()
            printer.text(line)

    def sorted_events(self) -> list[Event]:
        return sorted(self.events, key=lambda e: e.at_ns)


WEIGHTS = st.one_of(st.integers(1, 8), st.sampled_from([1, 10, 100, 1000, 10_000]))
TIMESLICES = st.one_of(st.sampled_from([200 * US, MS, 2 * MS, 4 * MS]), st.integers(100 * US, 4 * MS))


@st.composite
def caps(draw: st.DrawFn, *, always: bool = False) -> CapParams:
    if not always and draw(st.integers(0, 2)):
        return NO_CAP
    period = draw(st.sampled_from([MS, 10 * MS, 7_777_777]))
    return CapParams(
        cap_ns=period * draw(st.integers(20, 1000)) // 1000,
        cap_period_ns=period,
        burst_ns=draw(st.sampled_from([0, 50 * US, 1_234_567, 5 * MS])),
    )


@st.composite
def works(draw: st.DrawFn, engine: SchedParams, *, naps: bool = True) -> Work:
    lengths = st.integers(20 * US, min(8 * MS, engine.max_chunk_ns))
    if engine.splits:
        lengths = st.integers(20 * US, 8 * MS)
    items = draw(st.lists(lengths, min_size=1, max_size=3))
    nap_every = draw(st.sampled_from([0, 0, 1, 3])) if naps else 0
    return Work(
        items=tuple(items),
        splittable=engine.splits or draw(st.booleans()),
        nap_every=nap_every,
        nap_ns=draw(st.sampled_from([1, 10 * US, 500 * US, 3 * MS])) if nap_every else 0,
        starts_ns=draw(st.sampled_from([0, 0, 2 * MS])) if naps else 0,
    )


@st.composite
def engines(draw: st.DrawFn) -> SchedParams:
    return SchedParams(
        max_chunk_ns=draw(st.sampled_from([400 * US, MS, 8 * MS])),
        min_chunk_ns=20 * US,
        switch_cost_ns=draw(st.sampled_from([0, 2 * US])),
        splits=draw(st.booleans()),
    )


@st.composite
def tenants_of(draw: st.DrawFn, engine: SchedParams, *, naps: bool = True, capped: bool = True) -> Tenant:
    some_caps = caps() if capped else st.just(NO_CAP)
    slices = draw(
        st.lists(
            st.builds(SliceOf, weight=WEIGHTS, cap=some_caps, work=works(engine, naps=naps)),
            min_size=1,
            max_size=4,
        )
    )
    return Tenant(
        weight=draw(WEIGHTS),
        timeslice_ns=draw(TIMESLICES),
        cap=draw(some_caps),
        slices=tuple(slices),
    )


@st.composite
def events_of(draw: st.DrawFn, engine: SchedParams, duration_ns: int) -> Event:
    who = draw(st.integers(0, 5))
    which = draw(st.integers(0, 3))
    at = draw(st.integers(0, duration_ns))
    event: Event = draw(
        st.one_of(
            st.builds(Reweight, at_ns=st.just(at), who=st.just(who), weight=WEIGHTS),
            st.builds(NewTimeslice, at_ns=st.just(at), who=st.just(who), timeslice_ns=TIMESLICES),
            st.builds(NewCap, at_ns=st.just(at), who=st.just(who), cap=caps()),
            st.builds(
                ChangeSlice,
                at_ns=st.just(at),
                who=st.just(who),
                which=st.just(which),
                weight=WEIGHTS,
                cap=caps(),
            ),
            st.builds(
                OpenSlice,
                at_ns=st.just(at),
                who=st.just(who),
                slice=st.builds(SliceOf, weight=WEIGHTS, cap=caps(), work=works(engine)),
            ),
            st.builds(CloseSlice, at_ns=st.just(at), who=st.just(who), which=st.just(which)),
            st.builds(Arrive, at_ns=st.just(at), tenant=tenants_of(engine)),
            st.builds(Depart, at_ns=st.just(at), who=st.just(who)),
        )
    )
    return event


@st.composite
def stories(draw: st.DrawFn, *, most_tenants: int = 5, duration_ns: int = 40 * MS) -> Story:
    """Anything may happen: joins, leaves, naps, throttles, changes of every parameter."""
    engine = draw(engines())
    tenants = draw(st.lists(tenants_of(engine), min_size=1, max_size=most_tenants))
    events = draw(st.lists(events_of(engine, duration_ns), max_size=8))
    return Story(engine=engine, tenants=tuple(tenants), events=tuple(events), duration_ns=duration_ns)


@st.composite
def steady_stories(draw: st.DrawFn, *, most_tenants: int = 12, duration_ns: int = 100 * MS) -> Story:
    """Every slice is backlogged all the time, and none is capped."""
    engine = draw(engines())
    tenants = draw(st.lists(tenants_of(engine, naps=False, capped=False), min_size=1, max_size=most_tenants))
    # Copies make crowds of equals, whose deadlines coincide.
    crowd = draw(st.sampled_from([1, 1, 4, 12]))
    tenants += [replace(tenants[-1], weight=1)] * (crowd - 1)
    return Story(engine=engine, tenants=tuple(tenants), duration_ns=duration_ns)


@st.composite
def latencies(draw: st.DrawFn, engine: SchedParams) -> Latency:
    period = draw(st.sampled_from([4 * engine.max_chunk_ns, 7 * engine.max_chunk_ns, 40 * MS]))
    return Latency(
        reserve_ns=max(engine.min_chunk_ns, period * draw(st.integers(10, 300)) // 1000),
        period_ns=period,
        hold_max_ns=draw(st.sampled_from([0, 300 * US, 2 * MS])),
        inversion_permille=draw(st.sampled_from([0, 10, 100, 1000])),
        inversion_burst_ns=draw(st.sampled_from([0, 50 * US, MS])),
    )


@st.composite
def requests_of(draw: st.DrawFn, engine: SchedParams) -> Work:
    """Short kernels with gaps, like those of a host program."""
    work = draw(works(engine, naps=False))
    return replace(
        work,
        items=tuple(draw(st.lists(st.integers(20 * US, 300 * US), min_size=1, max_size=3))),
        nap_every=1,
        nap_ns=draw(st.sampled_from([10 * US, 150 * US, 700 * US])),
        request=draw(st.sampled_from([1, 3, 20])),
        hint_ns=draw(st.sampled_from([0, 1, engine.max_chunk_ns])),
    )


@st.composite
def lies_of(draw: st.DrawFn, duration_ns: int) -> Event:
    """Announcements that a hostile guest may make at any time."""
    at = draw(st.integers(0, duration_ns))
    who = draw(st.integers(0, 3))
    which = draw(st.integers(0, 1))
    items = st.builds(
        ItemInfo, kernel_id=st.integers(0, 4), more=st.booleans(), hint_ns=st.sampled_from([0, 1, 400 * US])
    )
    event: Event = draw(
        st.one_of(
            st.builds(Claim, at_ns=st.just(at), who=st.just(who), which=st.just(which), item=st.none() | items),
            st.builds(EndRequest, at_ns=st.just(at), who=st.just(who), which=st.just(which)),
            st.builds(
                Withdraw,
                at_ns=st.just(at),
                who=st.just(who),
                which=st.just(which),
                nap_ns=st.sampled_from([1, 50 * US, 2 * MS]),
            ),
        )
    )
    return event


@st.composite
def banded_stories(draw: st.DrawFn, *, duration_ns: int = 60 * MS) -> Story:
    """Some tenants have reservations and hold the engine, others fill the gaps; anything may happen."""
    engine = replace(
        draw(engines().filter(lambda engine: engine.max_chunk_ns <= MS)),
        reserve_limit_permille=draw(st.sampled_from([300, 750])),
    )
    tenants = []
    for _ in range(draw(st.integers(1, 4))):
        tenant = draw(tenants_of(engine, capped=draw(st.booleans())))
        if draw(st.booleans()):
            tenant = replace(tenant, latency=draw(latencies(engine)), weight=draw(st.sampled_from([1, 4, 100])))
        if tenant.latency or draw(st.booleans()):
            slices = tuple(replace(one, work=draw(requests_of(engine))) for one in tenant.slices[:2])
            tenant = replace(tenant, slices=slices)
        tenants.append(tenant)
    reserves = st.builds(
        NewReserve,
        at_ns=st.integers(0, duration_ns),
        who=st.integers(0, 3),
        latency=st.none() | latencies(engine),
    )
    events = draw(st.lists(events_of(engine, duration_ns) | reserves, max_size=5))
    lies = draw(st.lists(lies_of(duration_ns), max_size=12))
    return Story(engine=engine, tenants=tuple(tenants), events=(*events, *lies), duration_ns=duration_ns)


@st.composite
def ghostly_stories(draw: st.DrawFn, *, duration_ns: int = 40 * MS) -> Story:
    """Turns are kept for idle slices; anything may happen."""
    policy = draw(st.sampled_from([Policy.EQUAL_SHARE, Policy.FIXED_SHARE]))
    fixed = policy is Policy.FIXED_SHARE
    engine = replace(draw(engines()), policy=policy, places=draw(st.integers(4, 20)) if fixed else 0)
    mode = Mode.STRICT if fixed else Mode.FAIR
    tenants = draw(st.lists(tenants_of(engine, capped=False), min_size=1, max_size=4))
    events = draw(st.lists(events_of(engine, duration_ns), max_size=6))
    tenants = [replace(tenant, mode=mode) for tenant in tenants]
    return Story(engine=engine, tenants=tuple(tenants), events=tuple(events), duration_ns=duration_ns)
