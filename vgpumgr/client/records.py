# SPDX-License-Identifier: Apache-2.0
"""Tokens, events and the audit."""

from collections.abc import Iterator
from uuid import UUID

from vgpumgr.client.calls import PAGE_SIZE, Calls, yes
from vgpumgr.client.watch import follow
from vgpumgr.wire.audit import AuditEntry
from vgpumgr.wire.resources import Event, EventPage, Token, TokenCreate, TokenCreated


class RecordCalls(Calls):
    """Part of Client."""

    def tokens(
        self, *, role: str | None = None, subject: str | None = None, expired: bool | None = None
    ) -> Iterator[Token]:
        return self._pages("/v1/tokens", Token, role=role, subject=subject, expired=yes(expired))

    def create_token(self, token: TokenCreate, *, idempotency_key: str | None = None) -> TokenCreated:
        """Create a token. ApiError ``secret.shown`` if this key already created one; `reasons` name that token."""
        return self._post("/v1/tokens", TokenCreated, token, idempotency_key=idempotency_key, repeatable=False)

    def delete_token(self, token_id: UUID, *, validate_only: bool = False) -> None:
        self._delete(f"/v1/tokens/{token_id}", None, validate_only=validate_only)

    def events(
        self, *, after: int = 0, about: str | None = None, tenant: str | None = None, epoch: str | None = None
    ) -> Iterator[Event]:
        """Events with a larger number than `after`, oldest first, up to now.

        ApiError ``watch.expired`` if some are no longer kept, or if the database was restored. `epoch`: the epoch
        of the page from which `after` was taken.
        """
        while True:
            params = {"after": after, "page_size": PAGE_SIZE, "about": about, "tenant": tenant, "epoch": epoch}
            page = self._api.demand("GET", "/v1/events", EventPage, params=params)
            epoch = page.epoch or None
            yield from page.items
            following = page.next_page_token  # the page may be empty because its events are not for this token
            if not following.isdecimal() or int(following) <= after:
                return
            after = int(following)

    def watch_events(
        self,
        *,
        after: int | None = None,
        about: str | None = None,
        tenant: str | None = None,
        epoch: str | None = None,
    ) -> Iterator[Event]:
        """Events as they happen, starting after `after`. Each comes once and in order, even across lost connections."""
        return follow(self._api, {"after": after, "about": about, "tenant": tenant, "epoch": epoch})

    def audit(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        object: str | None = None,  # noqa: A002  # as the API calls it
        tenant: str | None = None,
        request_id: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> Iterator[AuditEntry]:
        """Entries, oldest first. `since`, `until`: instants in ISO 8601 with a time zone."""
        filters = {"actor": actor, "action": action, "object": object, "tenant": tenant, "request_id": request_id}
        return self._pages("/v1/audit", AuditEntry, **filters, since=since, until=until)
