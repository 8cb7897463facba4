# SPDX-License-Identifier: Apache-2.0
"""Events: what happened, in the order in which it was committed."""

from typing import Annotated

from fastapi import APIRouter, Query

from vgpumgr.wire.common import COUNTER_MAX, Page
from vgpumgr.wire.resources import Event
from vgpumgr_api.call import CallDep
from vgpumgr_api.services import events
from vgpumgr_api.services.paging import PAGE_SIZE, PAGE_SIZE_MAX
from vgpumgr_api.strict import Route

router = APIRouter(prefix="/v1/events", tags=["events"], route_class=Route)


@router.get("")
def list_events(
    call: CallDep,
    after: Annotated[int, Query(ge=0, le=COUNTER_MAX, description="only events with a larger `seq`")] = 0,
    page_size: Annotated[int, Query(ge=1, description="events at most; above 1000 counts as 1000")] = PAGE_SIZE,
) -> Page[Event]:
    """Events after `after`, oldest first. `next_page_token` is the next `after`, empty when no more are there now."""
    return call.write(events.list_events, after=after, size=min(page_size, PAGE_SIZE_MAX))
