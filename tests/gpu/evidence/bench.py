# SPDX-License-Identifier: Apache-2.0
"""What the experiments share: kernels measured once, repeats in mixed order, results as the document has them."""

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
    """A rig with how hard to try on it. `told` hears of each measurement."""

    rig: Rig
    effort: Effort
    told: Callable[[str], None] = lambda _: None
    _rounds: dict[tuple[str, float], int] = field(default_factory=dict)

    def rounds(self, load: Literal["compute", "memory"], kernel_us: float) -> int:
        """Work that takes so long on the idle GPU."""
        key = load, kernel_us
        if key not in self._rounds:
            tenant = Tenant(name="A", load=load, kernel_us=kernel_us)
            self._rounds[key] = duel.run(self.rig, [tenant], seconds=0.1).results[0].rounds
        return self._rounds[key]

    def run(self, tenants: Sequence[Tenant], at_mark: Callable[[duel.Running], None] | None = None) -> Duel:
        return duel.run(self.rig, tenants, seconds=self.effort.seconds, at_mark=at_mark)

    def repeat(self, test: str, settings: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
        """Each setting once in each repeat, in another order every time."""
        found: dict[str, list[T]] = {name: [] for name in settings}
        shuffle = random.Random(self.effort.seed)
        for number in range(1, self.effort.repeats + 1):
            for name in shuffle.sample(list(settings), len(settings)):
                self.told(f"{test}, repeat {number} of {self.effort.repeats}: {name}")
                found[name].append(settings[name]())
        return found


def verdict_of(places: Sequence[Place]) -> Verdict:
    """Every interval must be where it is expected; one that tells nothing leaves the test open."""
    if all(one is Place.INSIDE for one in places):
        return "pass"
    return "fail" if Place.OUTSIDE in places else "inconclusive"


def described(verdict: Verdict, reason: str, figures: Mapping[str, Any], settings: Sequence[Any]) -> dict[str, Any]:
    return {"verdict": verdict, "reason": reason, "figures": dict(figures), "settings": list(settings)}


def statuses(duels: Sequence[Duel]) -> list[str]:
    """Every answer of the driver to a timeslice that was asked for."""
    events = [entry for one in duels for result in one.results for entry in result.shim]
    return sorted({status_word(entry["status"]) for entry in events if entry["event"] in ("applied", "rewritten")})
