# SPDX-License-Identifier: Apache-2.0
"""Limits the rate of invalid credentials from one address; further ones are refused without a lookup.

A lookup costs statements or signature checks, and a client without a valid credential may send any number of invalid
ones. An address is that of the connection, or for IPv6 its network; headers that name another address are not trusted.
No client can lock out another one: a credential that was valid here before passes from any address. If there are too
many addresses to remember, those that failed longest ago are forgotten. Each replica counts separately.
"""

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator

from vgpumgr.wire.problem import Code
from vgpumgr_api.errors import Refusal
from vgpumgr_api.overload.rates import BURST_NS

ADDRESSES_MAX = 10_000
KNOWN_MAX = 50_000
"""The maximum number of credentials whose digests are remembered."""

_FAILED = (Code.AUTH_INVALID, Code.AUTH_EXPIRED)


class FailedLogins:
    """Belongs to the event loop of one server. 0 per second: no limit. `clock` counts nanoseconds from any start."""

    def __init__(self, per_s: int = 0, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._step_ns = 10**9 // per_s if per_s else 0
        self._clock = clock
        self._spent_until_ns: OrderedDict[str, int] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()

    @contextlib.contextmanager
    def counting(self, source: str, credential: str) -> Iterator[None]:
        """The context of a credential's lookup. Raises Refusal(RATE_EXCEEDED) if the limit is exceeded.

        `source`: an address, "" for none, for example on a Unix socket; requests without one are not limited.
        `credential`: identifies the credential, "" for none.
        """
        if self._step_ns == 0 or not source or not credential:
            yield
            return
        if credential not in self._known:
            self._require(source)
        try:
            yield
        except Refusal as refusal:
            if refusal.code in _FAILED:
                self._known.pop(credential, None)
                self._failed(source)
            elif refusal.code is Code.HOST_FENCED:  # a fenced host must be able to ask again
                self._remember(credential)
            raise
        self._remember(credential)

    def _require(self, source: str) -> None:
        wait_ns = self._spent_until_ns.get(source, 0) - self._clock() - BURST_NS
        if wait_ns > 0:
            again_s = -(-wait_ns // 10**9)
            raise Refusal(
                Code.RATE_EXCEEDED,
                f"too many invalid credentials came from this address; try again in {again_s} s",
                retry_after_s=again_s,
            )

    def _failed(self, source: str) -> None:
        now_ns = self._clock()
        until_ns = max(self._spent_until_ns.get(source, now_ns), now_ns) + self._step_ns
        # Concurrent failures above the limit are charged only once.
        self._spent_until_ns[source] = min(until_ns, now_ns + BURST_NS + self._step_ns)
        self._spent_until_ns.move_to_end(source)
        if len(self._spent_until_ns) > ADDRESSES_MAX:
            self._spent_until_ns.popitem(last=False)

    def _remember(self, credential: str) -> None:
        self._known[credential] = None
        self._known.move_to_end(credential)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
