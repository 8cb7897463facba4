# SPDX-License-Identifier: Apache-2.0
"""What the API answers to, one file per resource. A route parses, calls one service in one transaction, and answers.

Paths, methods and models here are the public interface; `api/openapi.json` is made from them.
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

# A request is compared with one route after the other, so that what is asked most often comes first.
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
