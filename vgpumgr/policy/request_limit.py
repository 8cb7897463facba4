# SPDX-License-Identifier: Apache-2.0
"""Request and limit: the part of the engine that each client is promised, and the part that it may use at most.

KubeShare (Yeh et al., HPDC 2020) and Gemini (Chen et al., IEEE TCC 2021) pass one token among the clients of a GPU. A
sliding window decides which client gets it. A client above its limit is not chosen. The client that misses the greatest
part of its request comes first; if all requests are met, the client that used least. `choose` is that rule.

In the core's words (`terms`), the request is the weight and the limit is the cap. EEVDF by weight serves the client
that is furthest behind, which is "missing first" without a window. Requests add up to at most the engine, so each
client's share by weight is at least its request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from vgpumgr.policy.terms import Terms, permille
from vgpumgr.ranges import PERMILLE

WINDOW_NS = 10_000_000_000


@dataclass(frozen=True, kw_only=True)
class RequestLimit:
    """The promised part and the limit, in permille of the engine."""

    request_permille: int
    limit_permille: int = PERMILLE

    def __post_init__(self) -> None:
        permille("limit_permille", self.limit_permille, least=1)
        permille("request_permille", self.request_permille)
        if self.request_permille > self.limit_permille:
            raise ValueError(f"request {self.request_permille} is above the limit {self.limit_permille} permille")


class Usage:
    """Engine time of one client within the last `window_ns`. Runs must be added in order of time."""

    def __init__(self, *, window_ns: int = WINDOW_NS) -> None:
        if window_ns <= 0:
            raise ValueError(f"window_ns {window_ns} is not above 0")
        self.window_ns = window_ns
        self._runs: deque[tuple[int, int]] = deque()
        self._sum_ns = 0

    def add(self, start_ns: int, end_ns: int) -> None:
        """Record that the client had the engine from `start_ns` to `end_ns`."""
        if end_ns < start_ns:
            raise ValueError(f"a run that starts at {start_ns} ns and ends at {end_ns} ns")
        if self._runs and start_ns < self._runs[-1][1]:
            raise ValueError(f"a run that starts at {start_ns} ns, before the last one ended at {self._runs[-1][1]} ns")
        self._runs.append((start_ns, end_ns))
        self._sum_ns += end_ns - start_ns

    def used_ns(self, now_ns: int) -> int:
        """Return the client's use in [now - window, now], and forget older runs."""
        edge_ns = now_ns - self.window_ns
        while self._runs and self._runs[0][1] <= edge_ns:
            start_ns, end_ns = self._runs.popleft()
            self._sum_ns -= end_ns - start_ns
        cut_ns = max(0, edge_ns - self._runs[0][0]) if self._runs else 0
        return self._sum_ns - cut_ns

    def below_at_ns(self, now_ns: int, allowed_ns: int) -> int:
        """Return when use falls below `allowed_ns` if the client does not run again; `now_ns` if use is below."""
        if allowed_ns <= 0:
            raise ValueError(f"allowed_ns {allowed_ns}: no use is below it")
        over_ns = self.used_ns(now_ns) - allowed_ns + 1
        if over_ns <= 0:
            return now_ns
        must_leave_ns = now_ns
        for start_ns, end_ns in self._runs:
            if over_ns <= 0:
                break
            begin_ns = max(start_ns, now_ns - self.window_ns)
            part_ns = min(over_ns, end_ns - begin_ns)
            must_leave_ns = begin_ns + part_ns
            over_ns -= part_ns
        return must_leave_ns + self.window_ns


@dataclass(frozen=True)
class Choice:
    """`client`: the client that gets the engine next, None if no client may have it.

    `ask_again_ns`: without `client`, when to ask again; None if no client wants the engine.
    """

    client: Hashable | None
    ask_again_ns: int | None = None


def choose(clients: Mapping[Hashable, tuple[RequestLimit, Usage]], now_ns: int) -> Choice:
    """Choose among `clients`, which all want the engine now. A client at its limit is not chosen.

    The client that misses the greatest part of its request comes first; of several, the client that used least.
    """
    best: Hashable | None = None
    best_rank: tuple[Fraction, int] | None = None
    again_ns: int | None = None
    for client, (promise, usage) in clients.items():
        used_ns = usage.used_ns(now_ns)
        limit_ns = promise.limit_permille * usage.window_ns // PERMILLE
        if promise.limit_permille < PERMILLE and used_ns >= limit_ns:
            below_ns = usage.below_at_ns(now_ns, max(limit_ns, 1))
            again_ns = below_ns if again_ns is None else min(again_ns, below_ns)
            continue
        promised_ns = Fraction(promise.request_permille * usage.window_ns, PERMILLE)
        missing = max(Fraction(0), 1 - used_ns / promised_ns) if promised_ns else Fraction(0)
        rank = (-missing, used_ns)
        if best_rank is None or rank < best_rank:
            best, best_rank = client, rank
    return Choice(best) if best_rank is not None else Choice(None, again_ns)


def terms(promises: Mapping[Hashable, RequestLimit], *, period_ns: int) -> dict[Hashable, Terms]:
    """Return weights and caps that enforce the promises in the kernel. The cap holds in every `period_ns`.

    A client without a request is opportunistic: it has the least weight. ValueError if the promises exceed the engine.
    """
    if period_ns < PERMILLE:
        raise ValueError(f"period_ns {period_ns} is below {PERMILLE}: a permille of it is not a whole nanosecond")
    promised = sum(promise.request_permille for promise in promises.values())
    if promised > PERMILLE:
        raise ValueError(f"requests add up to {promised} of {PERMILLE} permille")
    return {
        client: Terms(
            weight=max(1, promise.request_permille),
            cap_ns=promise.limit_permille * period_ns // PERMILLE if promise.limit_permille < PERMILLE else 0,
            cap_period_ns=period_ns if promise.limit_permille < PERMILLE else 0,
        )
        for client, promise in promises.items()
    }
