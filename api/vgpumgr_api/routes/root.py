# SPDX-License-Identifier: Apache-2.0
"""Routes without authentication: the versions, the health and the OpenAPI document of the API."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request

import vgpumgr
from vgpumgr.wire.common import Answer
from vgpumgr.wire.problem import Code
from vgpumgr_api.db.database import Database
from vgpumgr_api.edge.call import database_of, lifecycle_of, readiness_of
from vgpumgr_api.edge.strict import PublicRoute
from vgpumgr_api.errors import Refusal
from vgpumgr_api.installation import health

router = APIRouter(tags=["api"], route_class=PublicRoute)


class Versions(Answer):
    """`extensions` names what was added to a version after its first publication."""

    release: str
    versions: list[str]
    extensions: list[str]


class Health(Answer):
    """`status` is always `ok`; anything else is a problem document."""

    status: str


@router.get("/")
async def get_versions() -> Versions:
    """Returns the versions of the interface that this API speaks."""
    return Versions(release=vgpumgr.__version__, versions=["v1"], extensions=[])


@router.get("/v1/health")
async def get_health(request: Request) -> Health:
    """Readiness: answers 503 if the database is unusable or not migrated, or while the process is stopping."""
    if lifecycle_of(request).stopping:
        raise Refusal(Code.API_STOPPING, "this process is stopping; send the request to another one")
    database = database_of(request)
    await readiness_of(request).require(partial(_check, database))
    return Health(status="ok")


def _check(database: Database) -> None:
    database.run(health.check, read_only=True)
    database.require_usable()


@router.get("/v1/health/live")
async def get_liveness() -> Health:
    """Liveness: answers whatever the database does. If the process does not answer, restart it."""
    return Health(status="ok")


@router.get("/openapi.json")
async def get_openapi(request: Request) -> dict[str, Any]:
    """Returns this document."""
    document: dict[str, Any] = request.app.openapi()
    return document
