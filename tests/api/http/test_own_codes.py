# SPDX-License-Identifier: Apache-2.0
"""Frequent client mistakes have their own codes, spelled out here as they appear on the wire."""

from datetime import timedelta
from typing import Any

from httpx2 import Response

from tests.api.conftest import Clock
from tests.api.http.cloud import Cloud


def told(response: Response) -> tuple[int, Any]:
    return response.status_code, response.json()["code"]


def test_a_wrong_content_type(cloud: Cloud) -> None:
    typed = {"Content-Type": "text/plain"}
    answer = cloud.operator("POST", "/v1/tenants", content=b'{"name": "red"}', headers=typed)
    assert told(answer) == (415, "media_type.unsupported")
    assert cloud.operator.get("/v1/tenants")["items"] == []


def test_an_expired_token(cloud: Cloud, clock: Clock) -> None:
    caller = cloud.token(role="operator", expires_in_s=60)
    caller.get("/v1/tenants")
    clock.now += timedelta(seconds=61)
    assert told(caller("GET", "/v1/tenants")) == (401, "auth.expired")


def test_a_stale_if_match(cloud: Cloud) -> None:
    cloud.tenant("red")
    stale = {"If-Match": cloud.operator("GET", "/v1/quotas/red").headers["etag"]}
    cloud.operator.patch("/v1/quotas/red", {"slices": 1})
    answer = cloud.operator("PATCH", "/v1/quotas/red", {"slices": 2}, headers=stale)
    assert told(answer) == (412, "generation.stale")
    assert cloud.operator.get("/v1/quotas/red")["slices"] == 1


def test_an_idempotency_key_with_another_body(cloud: Cloud) -> None:
    key = {"Idempotency-Key": "k-1"}
    cloud.operator.post("/v1/tenants", {"name": "red"}, headers=key)
    answer = cloud.operator("POST", "/v1/tenants", {"name": "blue"}, headers=key)
    assert told(answer) == (422, "idempotency.mismatch")
    assert [each["name"] for each in cloud.operator.get("/v1/tenants")["items"]] == ["red"]
