# SPDX-License-Identifier: Apache-2.0
"""Events in the order in which they were committed, as a list and as a stream."""

import re
from typing import Annotated

from fastapi import APIRouter, Header, Query
from pydantic import AfterValidator, Field
from starlette.concurrency import run_in_threadpool

from vgpumgr.wire.common import COUNTER_MAX, Name
from vgpumgr.wire.events import About
from vgpumgr.wire.resources import EventPage
from vgpumgr_api.edge.call import Call, CallDep, database_of, feed_of
from vgpumgr_api.edge.event_stream import CATCH_UP, MEDIA_TYPE, POSITION, EventStream, parse_position
from vgpumgr_api.edge.strict import Route
from vgpumgr_api.events import events
from vgpumgr_api.events.events import Begun
from vgpumgr_api.overload.turns import metered
from vgpumgr_api.resources.paging import PAGE_SIZE, PAGE_SIZE_MAX

router = APIRouter(prefix="/v1/events", tags=["events"], route_class=Route)

AFTER = Query(ge=0, le=COUNTER_MAX, description="only events with a larger `seq`")
_EPOCH = r"^([0-9a-f]{12})?$"


def _of_page(epoch: str) -> str:
    if not re.fullmatch(_EPOCH, epoch):
        raise ValueError("not the `epoch` of a page of events, which is 12 hexadecimal digits")
    return epoch


Epoch = Annotated[
    str,
    AfterValidator(_of_page),
    Query(
        description="`epoch` of the page that `after` comes from; 410 if the database has another epoch",
        # The pattern is for the OpenAPI document; the validator's message is easier to understand.
        json_schema_extra={"pattern": _EPOCH},
    ),
]

LastEventId = Annotated[
    Annotated[str, Field(max_length=64, json_schema_extra={"pattern": f"^({POSITION})?$"})] | None,
    Header(description="`id` of the last event that was seen; overrides `after`"),
]


@router.get("")
def list_events(
    call: CallDep,
    after: Annotated[int, AFTER] = 0,
    page_size: Annotated[
        int, Query(ge=1, description="at most this many events; more than 1000 counts as 1000")
    ] = PAGE_SIZE,
    about: About | None = None,
    tenant: Name | None = None,
    epoch: Epoch = "",
) -> EventPage:
    """Lists events after `after`, oldest first. `next_page_token` is the next `after`, empty if there are no more."""
    size = min(page_size, PAGE_SIZE_MAX)
    unnumbered = _number(call)
    return call.read(
        events.list_events,
        after=after,
        size=size,
        about=_split(about),
        tenant=tenant,
        epoch=epoch,
        unnumbered=unnumbered,
    )


@router.get(
    "/watch",
    status_code=200,
    response_class=EventStream,
    responses={
        200: {
            "description": "Server-sent events: `data` is an Event, `id` its position; `event: problem` comes last",
            "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
        }
    },
)
async def watch_events(
    call: CallDep,
    after: Annotated[int | None, AFTER] = None,
    about: About | None = None,
    tenant: Name | None = None,
    epoch: Epoch = "",
    last_event_id: LastEventId = None,
) -> EventStream:
    """Streams events as they happen, beginning after `after` or `Last-Event-ID`, or else from now on."""
    if last_event_id:
        epoch, after = parse_position(last_event_id)
    actor, database = call.actor, database_of(call.request)
    async with call.turn():
        begun = await run_in_threadpool(
            metered, _begin, call, after=after, epoch=epoch, about=_split(about), tenant=tenant
        )
    return EventStream(
        feed_of(call.request),
        begun,
        actor,
        catch_up=lambda position: database.run(
            lambda session: events.catch_up(session, actor, begun, position, CATCH_UP), read_only=True
        ),
        turn=call.turn,
        clock=database.clock,
        request_id=call.request.state.request_id,
    )


def _number(call: Call) -> bool:
    """Numbers new events; takes locks only if there are any. Returns True if there may be more."""
    return call.read(events.has_unnumbered) and call.write(events.number)


def _begin(call: Call, *, after: int | None, epoch: str, about: frozenset[str], tenant: str | None) -> Begun:
    while _number(call):  # a watch without a position begins after all events so far, so all of them must be numbered
        pass
    return call.read(events.begin_watch, after=after, epoch=epoch, about=about, tenant=tenant)


def _split(about: str | None) -> frozenset[str]:
    return frozenset(about.split(",")) if about else frozenset()
