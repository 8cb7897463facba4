# SPDX-License-Identifier: Apache-2.0
"""The API's routes, one file per resource. A route parses, calls one service in one transaction, and answers.

The paths, methods and models here are the public interface; `api/openapi.json` is made from them.
"""

from fastapi import APIRouter

from vgpumgr_api.routes import (
    audit,
    events,
    fleet,
    gpus,
    hosts,
    operations,
    profiles,
    quotas,
    reservations,
    root,
    slices,
    tenants,
    tokens,
    usage,
)

# Routes are matched in this order, so the most frequent requests come first.
ROUTERS: tuple[APIRouter, ...] = (
    fleet.heartbeat_router,
    slices.claims_router,
    fleet.router,
    slices.router,
    slices.explain_router,
    root.router,
    tenants.router,
    quotas.router,
    profiles.router,
    hosts.router,
    gpus.router,
    operations.router,
    reservations.router,
    usage.router,
    tokens.router,
    events.router,
    audit.router,
    fleet.enroll_router,
)
