# SPDX-License-Identifier: Apache-2.0
"""What the experiments share: calibrated kernels, repeats in mixed order, and results in the document's form."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from vgpumgr.gpu import duel
from vgpumgr.gpu.abi import status_word
from vgpumgr.gpu.duel import Duel, Rig, Tenant
from vgpumgr.gpu.statistics import Place

if TYPE_CHECKING:
    from vgpumgr.gpu.shares import Effort

TOLERANCE = 0.03
T = TypeVar("T")
Verdict = Literal["pass", "fail", "inconclusive", "not_run", "measured"]


@dataclass
class Bench:
    """A rig and the effort of measurements on it. `told` is called with a line for each measurement."""

    rig: Rig
    effort: Effort
    told: Callable[[str], None] = lambda _: None
    _rounds: dict[tuple[str, float], int] = field(default_factory=dict)

    def rounds(self, load: Literal["compute", "memory"], kernel_us: float) -> int:
        """The number of rounds that take this long on the idle GPU."""
        key = load, kernel_us
        if key not in self._rounds:
            tenant = Tenant(name="A", load=load, kernel_us=kernel_us)
            self._rounds[key] = duel.run(self.rig, [tenant], seconds=0.1).results[0].rounds
        return self._rounds[key]

    def run(self, tenants: Sequence[Tenant], at_mark: Callable[[duel.Running], None] | None = None) -> Duel:
        return duel.run(self.rig, tenants, seconds=self.effort.seconds, at_mark=at_mark)

    def repeat(self, test: str, settings: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
        """Run each setting once in each repeat, in a new random order every time."""
        found: dict[str, list[T]] = {name: [] for name in settings}
        shuffle = random.Random(self.effort.seed)
        for number in range(1, self.effort.repeats + 1):
            for name in shuffle.sample(list(settings), len(settings)):
                self.told(f"{test}, repeat {number} of {self.effort.repeats}: {name}")
                found[name].append(settings[name]())
        return found


def verdict_of(places: Sequence[Place]) -> Verdict:
    """Pass if every interval is where it is expected. An interval without information makes the test inconclusive."""
    if all(one is Place.INSIDE for one in places):
        return "pass"
    return "fail" if Place.OUTSIDE in places else "inconclusive"


def described(verdict: Verdict, reason: str, figures: Mapping[str, Any], settings: Sequence[Any]) -> dict[str, Any]:
    return {"verdict": verdict, "reason": reason, "figures": dict(figures), "settings": list(settings)}


def statuses(duels: Sequence[Duel]) -> list[str]:
    """All different answers of the driver to requested timeslices."""
    events = [entry for one in duels for result in one.results for entry in result.shim]
    return sorted({status_word(entry["status"]) for entry in events if entry["event"] in ("applied", "rewritten")})
