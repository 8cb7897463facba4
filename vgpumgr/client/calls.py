# SPDX-License-Identifier: Apache-2.0
"""Requests that the client's methods share: paged lists, bodies, changes to one state of an object."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from vgpumgr.client.transport import Match, Transport
from vgpumgr.errors import ApiError
from vgpumgr.wire.common import Page
from vgpumgr.wire.problem import Code

PAGE_SIZE = 1000
WAIT_MARGIN_S = 15.0
"""How much longer than a long poll's own time its answer may take."""

Item = TypeVar("Item", bound=BaseModel)


class Loose(BaseModel):
    """A JSON object of any form."""

    model_config = ConfigDict(extra="allow", frozen=True)


def trial(validate_only: bool) -> Mapping[str, str]:
    """Return the query of a dry run: the request is checked and answered as usual, but changes nothing."""
    return {"validate_only": "true"} if validate_only else {}


def yes(whether: bool | None) -> str | None:
    """Return the text of a boolean in a query."""
    return None if whether is None else str(whether).lower()


class Calls:
    """The base of the parts of Client."""

    def __init__(self, api: Transport) -> None:
        self._api = api

    def _pages(self, path: str, kind: type[Item], /, **filters: str | int | None) -> Iterator[Item]:
        token: str | None = None
        while True:
            params = {"page_size": PAGE_SIZE, "page_token": token, **filters}
            page = self._api.demand("GET", path, Page[kind], params=params)  # type: ignore[valid-type]
            yield from page.items
            # Without this check, an API that returns the same token again would cause an endless loop.
            if not page.next_page_token or page.next_page_token == token:
                return
            token = page.next_page_token

    def _get(self, path: str, kind: type[Item]) -> Item:
        return self._api.demand("GET", path, kind)

    def _post(self, path: str, kind: type[Item], body: BaseModel | None = None, **options: Any) -> Item:
        return self._api.demand("POST", path, kind, body=body, **options)

    def _patch(self, path: str, kind: type[Item], patch: BaseModel, if_match: Match, *, validate_only: bool) -> Item:
        params = trial(validate_only)
        return self._api.demand("PATCH", path, kind, body=patch, if_match=if_match, params=params, repeatable=False)

    def _delete(self, path: str, if_match: Match | None, *, validate_only: bool) -> None:
        try:
            self._api.call("DELETE", path, Loose, if_match=if_match, params=trial(validate_only))
        except ApiError as error:
            # An earlier attempt, whose answer was lost, may have deleted the object, so that this attempt does not
            # find it.
            if validate_only or not (error.repeated and error.code == Code.OBJECT_UNKNOWN):
                raise
