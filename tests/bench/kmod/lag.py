# SPDX-License-Identifier: Apache-2.0
"""The lag of each tenant, from its stays on the engine and from the other events that change a lag.

The rules are R4 as in tests/sched/exact.py, the reference of the core's own tests. A tenant that gets its first work
has a lag of 0, or credit for its sleep since it was made, at most a timeslice. A tenant without work stays in the
average until its debt is paid. A new weight keeps the lag. Lags are relative to the served time: time that no tenant
was charged does not count.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from tests.bench.kmod.workload import MAX_CHUNK_NS, TIMESLICE_NS, Change, Stay
from tests.sched.exact import Level, Party, on_grid

Lags = Mapping[str, Fraction]


class Account:
    """The tenants of one engine. `timeslice_ns`: the timeslice of all of them."""

    def __init__(self, timeslice_ns: int) -> None:
        self.timeslice_ns = timeslice_ns
        self.level = Level(MAX_CHUNK_NS)  # the picks are known, so deadlines do not matter
        self.parties: dict[str, Party] = {}

    def charge(self, name: str, ns: int) -> None:
        """Charge a tenant. Raises ValueError if it had no work."""
        party = self.parties.get(name)
        if party is None or not party.ready:
            raise ValueError(f"{name} ran without work")
        self.level.charge(party, ns)
        self.level.settle()

    def change(self, change: Change) -> None:
        if change.weight is not None:
            self._weigh(change.name, change.weight)
        if change.has_work is not None:
            self.level.set_ready(self.parties[change.name], change.has_work)

    def _weigh(self, name: str, weight: int) -> None:
        party = self.parties.get(name)
        if party is None:
            v = on_grid(self.level.high)
            self.parties[name] = Party(name, weight, self.timeslice_ns, v, v)
            self.level.add(self.parties[name])
        elif weight:
            self.level.set_weight(party, weight)
        else:
            self.level.set_ready(party, False)
            self.level.remove(party)
            del self.parties[name]

    def lags(self) -> Lags:
        """Return the lags of tenants with work or debt, in ns."""
        v = self.level.v
        return {party.name: party.weight * (v - party.v) for party in self.level.members}


def lags(stays: Sequence[Stay], changes: Sequence[Change], *, timeslice_ns: int = TIMESLICE_NS) -> Iterator[Lags]:
    """Yield the lags after every stay and every change, and also before a change inside a stay.

    A lag falls only while its tenant runs, rises only while it does not run, and jumps only at changes. So no value in
    between exceeds the yielded ones.
    """
    account = Account(timeslice_ns)
    due = deque(sorted(changes, key=lambda change: change.time_ns))
    for stay in sorted(stays, key=lambda stay: stay.start_ns):
        charged_ns = 0
        while due and due[0].time_ns < stay.end_ns:
            change = due.popleft()
            before_ns = max(0, change.time_ns - stay.start_ns)
            if before_ns > charged_ns:
                account.charge(stay.name, before_ns - charged_ns)
                charged_ns = before_ns
                yield account.lags()
            account.change(change)
            yield account.lags()
        account.charge(stay.name, stay.length_ns - charged_ns)
        yield account.lags()


def furthest(found: Iterator[Lags]) -> tuple[int, int]:
    """Return the lag furthest from zero, and the largest movement of one tenant's lag between two moments, in ns."""
    least: dict[str, Fraction] = {}
    most: dict[str, Fraction] = {}
    for moment in found:
        for name, lag in moment.items():
            least[name] = min(lag, least.get(name, lag))
            most[name] = max(lag, most.get(name, lag))
    worst = max(max(most[name], -least[name]) for name in most)
    return round(worst), round(max(most[name] - least[name] for name in most))
