# SPDX-License-Identifier: Apache-2.0
"""The sizes of measurements: the full one, and a small one that only tests the benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.api.cluster import Cluster
from tests.bench.api.fleet import Fleet
from tests.bench.api.load import Address
from tests.bench.api.servers import Replicas

CLIENTS = 16
"""The number of simultaneous clients where the issue gives none."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Hosts have four GPUs each. `rounds` are taken in turns, so that other load affects all variants alike.
    `warm_claims`: claims before a measurement on processes that were just started. `claims_of_kind`: the maximum of a
    kind in one run, so that the rare GPUs have room for all of them.

    `greedy`: connections of the greedy client.

    `workers`: processes of each server under test. `placement_clients`: no more than Placement has threads, because
    further clients would only wait, for minutes.
    """

    hosts: int
    few_hosts: int
    placement_hosts: int
    warm_claims: int
    claims_of_kind: int
    seconds: float
    placement_seconds: float
    placement_clients: tuple[int, ...]
    rounds: int
    clients: tuple[int, ...]
    watchers: int
    workers: int
    greedy: int

    @property
    def several(self) -> int:
        """The number of clients in the targets, or the maximum if that is less."""
        return min(CLIENTS, max(self.clients))


FULL = Sizes(
    hosts=10_000,
    few_hosts=250,
    placement_hosts=2_500,
    warm_claims=1_000,
    claims_of_kind=1_000,
    seconds=10,
    placement_seconds=30,
    placement_clients=(1, 16),
    rounds=3,
    clients=(1, 16, 64),
    watchers=1_000,
    workers=2,
    greedy=200,
)
SMALL = Sizes(
    hosts=20,
    few_hosts=10,
    placement_hosts=10,
    warm_claims=20,
    claims_of_kind=30,
    seconds=0.3,
    placement_seconds=1,
    placement_clients=(1, 4),
    rounds=1,
    clients=(1, 4),
    watchers=10,
    workers=1,
    greedy=8,
)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The environment of an experiment. `directory`: for its files. `replicas`: of an API on the database of
    `whole`.
    """

    sizes: Sizes
    cluster: Cluster
    directory: Path
    whole: Fleet
    replicas: Replicas

    @property
    def addresses(self) -> Sequence[Address]:
        return self.replicas.addresses
