# SPDX-License-Identifier: Apache-2.0
"""Job sets generated from published aggregates. No published data is copied, so these sets are not the originals.

- `salus_trace`: the 100 jobs of Salus' evaluation (Yu and Chowdhury, MLSys 2020), whose trace is not public. Only this
  is known: 100 jobs of a Tiresias trace have a makespan of 303.4 min on one device. Here the lengths are log-normal
  and have that sum.
- `inference_apps`: the 42 inference applications of that evaluation on one GPU: 14 networks, three of each. Persistent
  memory is the size of the networks' public parameter counts in single precision.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

from vgpumgr.policy.lanes import Demand
from vgpumgr.sim.jobs import SECOND_NS, JobSpec

MIB = 1 << 20
JOBS = 100
TOTAL_S = 18_204
FLOOR_S = 10
GAP_S = 10
SIGMA = 1.3
# Seconds per iteration of the networks that Salus ran, smallest and largest (its tests/workloads.csv).
ITERATION_S = (0.06, 1.2)

# Network: parameters in MiB at 4 bytes each, and peak MiB when training with the smallest and the largest batch (Salus,
# tests/workloads.csv).
TRAINING_MIB: dict[str, tuple[int, int, int]] = {
    "alexnet": (233, 687, 1397),
    "googlenet": (27, 756, 2534),
    "overfeat": (556, 3255, 6240),
    "vgg11": (507, 3710, 9203),
    "vgg16": (528, 4317, 10445),
    "vgg19": (548, 4463, 12024),
    "resnet50": (98, 2116, 5915),
    "resnet101": (170, 3238, 8988),
    "resnet152": (230, 4563, 12726),
    "inception3": (91, 2500, 9379),
    "inception4": (163, 4445, 12662),
}
# Weights and the largest scratch at batch 1, MiB. The scratch is an upper bound for the family, not a measurement.
INFERENCE_MIB: dict[str, tuple[int, int]] = {
    "alexnet": (233, 200),
    "googlenet": (50, 200),
    "overfeat": (553, 400),
    "vgg11": (507, 1100),
    "vgg16": (528, 1300),
    "vgg19": (548, 1500),
    "resnet50": (98, 300),
    "resnet101": (170, 400),
    "resnet152": (230, 500),
    "inception3": (104, 300),
    "inception4": (163, 500),
    "speech": (143, 600),
    "vae": (5, 50),
    "superres": (1, 500),
}


def salus_trace(seed: int, *, jobs: int = JOBS, sigma: float = SIGMA) -> list[JobSpec]:
    """Return jobs with exact estimates.

    Lengths are log-normal, at least about FLOOR_S, with a sum of TOTAL_S for each 100 jobs. Persistent memory is
    weights and momentum. The rest of a job's peak memory is ephemeral. The peak is random, between the peaks with the
    smallest and the largest batch.
    """
    if jobs < 1 or sigma < 0:
        raise ValueError(f"{jobs} jobs, sigma {sigma}: there must be at least one job, and sigma is not negative")
    rng = random.Random(seed)
    lengths = [rng.lognormvariate(0, sigma) for _ in range(jobs)]
    gaps_s = [GAP_S * rng.uniform(0.67, 1.33) for _ in range(jobs - 1)]
    arrivals_s = itertools.accumulate(gaps_s, initial=0.0)
    total_s = TOTAL_S * jobs / JOBS
    lengths_s = _scaled([max(FLOOR_S, length) for length in _scaled(lengths, total_s)], total_s)
    specs = []
    for arrival_s, length_s in zip(arrivals_s, lengths_s, strict=True):
        weights, least, most = TRAINING_MIB[rng.choice(sorted(TRAINING_MIB))]
        peak = round(rng.uniform(least, most))
        iteration_s = math.exp(rng.uniform(*map(math.log, ITERATION_S)))
        work_ns = round(length_s * SECOND_NS)
        specs.append(
            JobSpec(
                arrival_ns=round(arrival_s * SECOND_NS),
                work_ns=work_ns,
                iteration_ns=round(iteration_s * SECOND_NS),
                estimate_ns=work_ns,
                demand=Demand(
                    persistent_bytes=min(2 * weights, peak) * MIB, ephemeral_bytes=max(0, peak - 2 * weights) * MIB
                ),
            )
        )
    return specs


def _scaled(lengths: list[float], total: float) -> list[float]:
    factor = total / sum(lengths)
    return [length * factor for length in lengths]


def with_estimates(
    specs: list[JobSpec], *, sigma: float, seed: int, assumed_sigma: float | None = None
) -> list[JobSpec]:
    """Return the same jobs with estimates that are wrong by a log-normal factor with median 1.

    The order knows the size of the errors (`sigma`), unless `assumed_sigma` gives it another value.
    """
    rng = random.Random(f"estimates {seed}")
    known = sigma if assumed_sigma is None else assumed_sigma
    return [
        replace(spec, estimate_ns=max(1, round(spec.work_ns * math.exp(rng.gauss(0, sigma)))), error_sigma=known)
        for spec in specs
    ]


def inference_apps(*, copies: int = 3) -> dict[str, Demand]:
    """Name and memory of each application."""
    return {
        f"{network}-{copy}": Demand(persistent_bytes=weights * MIB, ephemeral_bytes=scratch * MIB)
        for network, (weights, scratch) in INFERENCE_MIB.items()
        for copy in range(copies)
    }
