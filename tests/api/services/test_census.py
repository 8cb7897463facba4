# SPDX-License-Identifier: Apache-2.0
"""The reasons why no GPU takes a claim, on fleets of all kinds, compared with a plain implementation of the rules."""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from vgpumgr_api.claims import explain
from vgpumgr_api.errors import Refusal

from tests.api.world import GIB, World, gpu
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import SliceCreate

KEYS, VALUES = ("zone", "model"), ("a", "b")
SHARES, SIZES_GIB = (200, 700), (1, 3, 9)


@dataclass
class Known:
    """A GPU as the test made it. `own`: its labels; `host`: the labels of its host."""

    mem_gib: int
    types_gib: tuple[int, ...]
    own: dict[str, str]
    host: dict[str, str]
    ready: bool
    share_used: int = 0
    mem_used_gib: int = 0

    def type_gib(self, gib: int) -> int | None:
        return min((each for each in self.types_gib if each >= gib), default=None)

    def obstacle(self, share: int, gib: int, selector: dict[str, str]) -> str:
        labels = self.host | self.own
        smallest = self.type_gib(gib)
        if any(labels.get(key) != value for key, value in selector.items()):
            return "labels.other"
        if not self.ready:
            return "host.cordoned"
        if smallest is None:
            return "type.none"
        if self.share_used + share > 1000:
            return "share.full"
        return "memory.full" if self.mem_used_gib + smallest > self.mem_gib else ""


@dataclass
class Fleet:
    world: World
    rng: random.Random
    gpus: dict[tuple[str, str], Known] = field(default_factory=dict)

    def labels(self) -> dict[str, str]:
        return {key: self.rng.choice(VALUES) for key in KEYS if self.rng.random() < 0.6}

    def make(self) -> None:
        for number in range(5):
            name, labels, ready = f"host-{number}", self.labels(), self.rng.random() < 0.8
            for each in range(2):
                types = tuple(self.rng.sample((1, 2, 4, 8), self.rng.randint(1, 3)))
                known = Known(self.rng.choice((4, 8, 16)), types, self.labels(), labels, ready)
                self.gpus[name, f"0000:0{each}:00.0"] = known
            of_host = {address: known for (host, address), known in self.gpus.items() if host == name}
            inventory = [
                gpu(address, mem_bytes=known.mem_gib * GIB, types=known.types_gib) for address, known in of_host.items()
            ]
            self.world.host(name, inventory=inventory)
            self.world.set_host(name, labels=labels, state="ready" if ready else "cordoned")
        for each_gpu in self.world.gpus():
            self.world.set_gpu(each_gpu.id, labels=self.gpus[each_gpu.host, each_gpu.address].own)


@pytest.mark.parametrize("seed", range(4))
def test_every_gpu_is_counted_under_the_first_thing_that_is_wrong_with_it(world: World, seed: int) -> None:
    fleet = Fleet(world, random.Random(seed))
    fleet.make()
    world.tenant("acme")
    profiles = {(share, gib): world.profile(share, gib) for share in SHARES for gib in SIZES_GIB}
    told: Counter[str] = Counter()
    for _ in range(40):
        (share, gib), profile = fleet.rng.choice(list(profiles.items()))
        selector = {key: fleet.rng.choice((*VALUES, "none")) for key in KEYS if fleet.rng.random() < 0.4}
        expected = Counter(known.obstacle(share, gib, selector) for known in fleet.gpus.values())
        fitting = expected.pop("", 0)

        asked = SliceCreate(tenant="acme", profile=profile.name, selector=selector)
        explained = world.run(explain.explain, asked)
        assert (explained.fitting, explained.fits) == (fitting, fitting > 0)
        assert (explained.detail is None) == explained.fits
        assert {reason.code: reason.count for reason in explained.reasons} == expected
        told.update(expected.keys())

        if fitting:
            claimed = world.claim("acme", profile, selector=selector)
            known = fleet.gpus[claimed.host, claimed.gpu]
            assert not known.obstacle(share, gib, selector)
            known.share_used += share
            known.mem_used_gib += known.type_gib(gib) or 0
        else:
            with pytest.raises(Refusal) as refused:
                world.claim("acme", profile, selector=selector)
            assert refused.value.code is Code.CAPACITY_NONE
            assert {reason.code: reason.count for reason in refused.value.reasons} == expected
            assert refused.value.detail == explained.detail
    assert {"labels.other", "type.none", "share.full"} <= told.keys()
