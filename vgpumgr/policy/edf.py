# SPDX-License-Identifier: Apache-2.0
"""Earliest deadline first, dropping requests when they cannot all be served in time.

EDF meets every deadline that can be met (Liu and Layland, 1973), but in overload each late request makes the next one
late. Therefore the queue is planned ahead, in deadline order, with predicted times. When a request would be late, that
request or an earlier one is dropped. Dropping the longest request drops the fewest (Moore and Hodgson: Moore,
Management Science 15(1), 1968), but always hits the services with long requests. Therefore no service loses more than
its allowance while another service still has some allowance. When no service has allowance left, the service that lost
the smallest part of its requests loses a request.

Times are ns. Deadlines are points in time; `left_ns` is predicted engine time still to be spent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from vgpumgr.policy.terms import permille
from vgpumgr.ranges import PERMILLE

FLOOR_PERMILLE = 900
# The plan aims this much above the floor, because some requests end late although they were planned to end in time.
MARGIN_PERMILLE = 10
# Counts are halved whenever twice this many requests have been offered, because the floor is about recent requests.
MEMORY_REQUESTS = 4096


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request in the queue."""

    key: Hashable
    service: Hashable
    deadline_ns: int
    left_ns: int

    def __post_init__(self) -> None:
        if self.left_ns <= 0:
            raise ValueError(f"request {self.key!r}: {self.left_ns} ns of work left, must be above 0")


@dataclass
class _Account:
    offered: int = 0
    lost: int = 0


class Ledger:
    """Counts the requests that each service offered and lost, and so how many more it may lose.

    `floor_permille`: the part of its requests that each service keeps if capacity allows.
    """

    def __init__(self, *, floor_permille: int = FLOOR_PERMILLE) -> None:
        self.floor_permille = permille("floor_permille", floor_permille)
        self._may_lose_permille = max(0, PERMILLE - floor_permille - MARGIN_PERMILLE)
        self._accounts: dict[Hashable, _Account] = {}

    def offer(self, service: Hashable) -> None:
        """Record that a request of `service` arrived."""
        account = self._accounts.setdefault(service, _Account())
        account.offered += 1
        if account.offered >= 2 * MEMORY_REQUESTS:
            account.offered //= 2
            account.lost //= 2

    def lose(self, service: Hashable) -> None:
        """Record that a request was dropped or ended late. ValueError if all offered requests are already lost."""
        account = self._accounts.get(service, _Account())
        if account.lost >= account.offered:
            raise ValueError(
                f"service {service!r} lost {account.lost} of {account.offered} requests; no request is left to lose"
            )
        account.lost += 1

    def lost(self, service: Hashable) -> Fraction:
        """Return the part of its requests that the service lost."""
        account = self._accounts.get(service, _Account())
        return Fraction(account.lost, max(account.offered, 1))

    def may_lose(self, service: Hashable) -> bool:
        """Whether the service stays above the floor plus the margin if it loses one more request."""
        account = self._accounts.get(service, _Account())
        return (account.lost + 1) * PERMILLE <= account.offered * self._may_lose_permille


@dataclass(frozen=True)
class Plan:
    """`run`: requests in the order to run, all in time if predictions hold. `drop`: dropped requests, in that order."""

    run: tuple[Request, ...]
    drop: tuple[Request, ...]


def moore_hodgson(queue: Iterable[Request], now_ns: int) -> Plan:
    """Plan with the fewest drops. Optimal for a queue to which nothing is added."""
    return _plan(queue, now_ns, victim=lambda request: request.left_ns, dropped=lambda _: None)


def plan(queue: Iterable[Request], now_ns: int, ledger: Ledger) -> Plan:
    """Plan with drops spread fairly among services, and record the drops in `ledger`."""

    def victim(request: Request) -> tuple[bool, Fraction, int]:
        if ledger.may_lose(request.service):
            return True, Fraction(0), request.left_ns
        return False, -ledger.lost(request.service), request.left_ns

    return _plan(queue, now_ns, victim=victim, dropped=lambda request: ledger.lose(request.service))


def _plan(
    queue: Iterable[Request],
    now_ns: int,
    *,
    victim: Callable[[Request], Any],
    dropped: Callable[[Request], None],
) -> Plan:
    kept: list[Request] = []
    drop: list[Request] = []
    end_ns = now_ns
    for request in sorted(queue, key=lambda request: request.deadline_ns):
        if now_ns + request.left_ns > request.deadline_ns:
            drop.append(request)
            dropped(request)
            continue
        kept.append(request)
        end_ns += request.left_ns
        while end_ns > request.deadline_ns:
            worst = max(kept, key=victim)
            kept.remove(worst)
            end_ns -= worst.left_ns
            drop.append(worst)
            dropped(worst)
    return Plan(tuple(kept), tuple(drop))
