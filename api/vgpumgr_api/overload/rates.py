# SPDX-License-Identifier: Apache-2.0
"""Limits the request rate of each token, and of each tenant with all its tokens. Each replica counts separately.

The generic cell rate algorithm (ITU-T I.371): for each key, one point in time records until when its allowance is
spent.
"""

import time
from collections.abc import Callable, Hashable

from vgpumgr.wire.problem import Code
from vgpumgr_api.actors import Actor
from vgpumgr_api.errors import Refusal

BURST_S = 4
BURST_NS = BURST_S * 10**9
"""The burst: after a silence, as many requests may arrive at once as the rate allows in this time."""

KEYS_MAX = 10_000
"""Above this number, and above twice the number of active keys, keys with a full allowance are forgotten. That changes
no limit.
"""


class Limiter:
    """The limiter for one kind of key. 0 per second: no limit."""

    def __init__(self, per_s: int) -> None:
        self._step_ns = 10**9 // per_s if per_s else 0
        self._spent_until_ns: dict[Hashable, int] = {}
        self._forget_at = KEYS_MAX

    def __len__(self) -> int:
        return len(self._spent_until_ns)

    def wait_ns(self, key: Hashable, now_ns: int) -> int:
        """Takes one request from the allowance and returns 0, or returns how long to wait and takes nothing."""
        if self._step_ns == 0:
            return 0
        until_ns = max(self._spent_until_ns.get(key, now_ns), now_ns) + self._step_ns
        if until_ns > now_ns + BURST_NS:
            return until_ns - now_ns - BURST_NS
        self._spent_until_ns[key] = until_ns
        if len(self._spent_until_ns) > self._forget_at:
            self._forget(now_ns)
        return 0

    def _forget(self, now_ns: int) -> None:
        self._spent_until_ns = {each: until for each, until in self._spent_until_ns.items() if until > now_ns}
        # Otherwise, while all keys are active, every new key would cause another pass over all of them.
        self._forget_at = max(KEYS_MAX, 2 * len(self._spent_until_ns))


class Limits:
    """Belongs to the event loop of one server. `clock` counts nanoseconds from any start."""

    def __init__(
        self, *, token_per_s: int = 0, tenant_per_s: int = 0, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._tokens = Limiter(token_per_s)
        self._tenants = Limiter(tenant_per_s)
        self._clock = clock

    def admit(self, actor: Actor) -> None:
        """Raises Refusal(RATE_EXCEEDED) if the actor exceeds its rate."""
        now_ns = self._clock()
        self._require(self._tokens.wait_ns(actor.token_id or actor.scope, now_ns), "this token")
        if actor.tenant_id is not None:
            self._require(self._tenants.wait_ns(actor.tenant_id, now_ns), "this tenant")

    @staticmethod
    def _require(wait_ns: int, who: str) -> None:
        if wait_ns > 0:
            again_s = -(-wait_ns // 10**9)
            raise Refusal(Code.RATE_EXCEEDED, f"{who} asks too often; try again in {again_s} s", retry_after_s=again_s)
