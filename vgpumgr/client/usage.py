# SPDX-License-Identifier: Apache-2.0
"""Counters and the ledger."""

from collections.abc import Iterator

from vgpumgr.client.calls import Calls
from vgpumgr.client.transport import Params
from vgpumgr.wire.resources import Usage
from vgpumgr.wire.usage import Grant, LedgerRow, UnbookedRow

EXPORT_SILENCE_S = 60.0


class UsageCalls(Calls):
    """Part of Client."""

    def usage(self, *, tenant: str | None = None, host: str | None = None) -> Iterator[Usage]:
        return self._pages("/v1/usage", Usage, tenant=tenant, host=host)

    def ledger(
        self,
        *,
        since: str,
        until: str,
        granularity: str | None = None,
        by: str | None = None,
        tenant: str | None = None,
        account: str | None = None,
        as_of: str | None = None,
    ) -> Iterator[LedgerRow]:
        """Rows of granted and used quantities. `since`, `until`, `as_of`: whole hours in ISO 8601 with a time zone."""
        filters = {"granularity": granularity, "by": by, "tenant": tenant, "account": account, "as_of": as_of}
        return self._pages("/v1/usage/ledger", LedgerRow, since=since, until=until, **filters)

    def export_ledger(
        self,
        *,
        since: str,
        until: str,
        granularity: str | None = None,
        by: str | None = None,
        tenant: str | None = None,
        account: str | None = None,
        as_of: str | None = None,
    ) -> Iterator[bytes]:
        """The same as CSV, in pieces. ApiUnreachableError if the answer is cut short and therefore incomplete."""
        params = {"since": since, "until": until, "granularity": granularity, "by": by, "tenant": tenant}
        params |= {"account": account, "as_of": as_of}
        return self._export("/v1/usage/ledger.csv", params)

    def unbooked(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        host: str | None = None,
        tenant: str | None = None,
        reason: str | None = None,
    ) -> Iterator[UnbookedRow]:
        """Counts that the ledger does not have, for hours that begin at or after `since` and before `until`."""
        filters = {"since": since, "until": until, "host": host, "tenant": tenant, "reason": reason}
        return self._pages("/v1/usage/unbooked", UnbookedRow, **filters)

    def export_unbooked(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        host: str | None = None,
        tenant: str | None = None,
        reason: str | None = None,
    ) -> Iterator[bytes]:
        """The same as CSV, in pieces. ApiUnreachableError if the answer is cut short and therefore incomplete."""
        params = {"since": since, "until": until, "host": host, "tenant": tenant, "reason": reason}
        return self._export("/v1/usage/unbooked.csv", params)

    def _export(self, path: str, params: Params) -> Iterator[bytes]:
        with self._api.stream(path, params=params, headers={}, silence_s=EXPORT_SILENCE_S) as pieces:
            yield from pieces

    def grants(
        self, *, since: str, until: str, tenant: str | None = None, account: str | None = None
    ) -> Iterator[Grant]:
        """Periods of claims that overlap the time from `since` to `until`."""
        return self._pages("/v1/usage/grants", Grant, since=since, until=until, tenant=tenant, account=account)
