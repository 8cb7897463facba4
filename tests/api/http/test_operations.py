# SPDX-License-Identifier: Apache-2.0
"""Host states and operations over HTTP, and waiting for an operation that ends elsewhere."""

import asyncio
import threading
import time
from datetime import datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import select
from vgpumgr_api.background import operating
from vgpumgr_api.db.progress import Operation
from vgpumgr_api.events.watch import RUNNING

from tests.api.conftest import Clock
from tests.api.http.cloud import GIB, Cloud
from vgpumgr.wire.operations import HostDrain
from vgpumgr.wire.problem import Code

SOON_S = 30


def if_match(cloud: Cloud, name: str) -> dict[str, str]:
    return {"If-Match": cloud.operator("GET", f"/v1/hosts/{name}").headers["etag"]}


def drained(cloud: Cloud, name: str = "h1", **options: Any) -> Any:
    headers = if_match(cloud, name) | options.pop("headers", {})
    return cloud.operator("POST", f"/v1/hosts/{name}:drain", options, headers=headers)


def claimed(cloud: Cloud) -> str:
    cloud.tenant("acme", share_permille=1000, mem_bytes=8 * GIB, slices=4)
    cloud.operator.post("/v1/profiles", {"name": "p1", "share_permille": 100, "mem_bytes": GIB})
    return str(cloud.operator.post("/v1/slices", {"tenant": "acme", "profile": "p1"})["id"])


def test_a_drain_is_begun_followed_and_ended(cloud: Cloud) -> None:
    host = cloud.host("h1")
    slice_id = claimed(cloud)
    answer = drained(cloud, deadline_s=600, then="maintenance", labels={"why": "disk"})
    begun = answer.json()
    path = f"/v1/operations/{begun['id']}"
    assert (answer.status_code, answer.headers["location"]) == (202, path)
    assert answer.headers["etag"].startswith('"2-')
    assert (begun["state"], begun["done"], begun["progress"]["left"]) == ("running", False, 1)
    assert begun["request"] == {"deadline_s": 600, "then": "maintenance", "labels": {"why": "disk"}}
    draining = cloud.operator.get("/v1/hosts/h1")
    assert (draining["state"], draining["labels"]) == ("draining", {"why": "disk"})
    assert host.desired().host_state == "draining"
    assert cloud.operator.get(f"{path}?wait_s=1")["done"] is False
    cloud.operator.delete(f"/v1/slices/{slice_id}", status=202)
    host.report()
    ended = cloud.operator.get(path)
    assert (ended["state"], ended["result"]) == ("succeeded", {"drained": 1, "unknown_slices": 0})
    assert cloud.operator.get("/v1/hosts/h1")["state"] == "maintenance"
    assert cloud.operator.get("/v1/operations?kind=host.drain&target=h1")["items"] == [ended]
    assert cloud.operator.get("/v1/operations?state=running")["items"] == []
    cloud.operator.refused(Code.OPERATION_DONE, "POST", f"{path}:cancel", {})
    cloud.operator.refused(Code.FIELD_INVALID, "GET", f"{path}?wait_s=61")
    cloud.operator.refused(Code.FIELD_INVALID, "GET", "/v1/operations?state=done")


def test_who_waits_is_answered_at_the_end(cloud: Cloud, clock: Clock) -> None:
    host = cloud.host("h1")
    slice_id = claimed(cloud)
    path = f"/v1/operations/{drained(cloud).json()['id']}"
    found: list[Any] = []
    waiting = [threading.Thread(target=lambda: found.append(cloud.operator.get(f"{path}?wait_s=60"))) for _ in range(3)]
    for each in waiting:
        each.start()
    time.sleep(0.5)
    assert found == []
    cloud.operator.delete(f"/v1/slices/{slice_id}", status=202)
    host.report()
    clock.advance(operating.LOOK.total_seconds())
    for each in waiting:
        each.join(SOON_S)
    assert [one["state"] for one in found] == ["succeeded"] * 3


def test_who_has_waited_long_enough_is_told_how_far_it_is_then(cloud: Cloud) -> None:
    host = cloud.host("h1")
    slice_id = claimed(cloud)
    cloud.operator.post("/v1/slices", {"tenant": "acme", "profile": "p1"})
    path = f"/v1/operations/{drained(cloud).json()['id']}"
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(cloud.operator.get(f"{path}?wait_s=6")))
    waiting.start()
    time.sleep(0.5)
    cloud.operator.delete(f"/v1/slices/{slice_id}", status=202)
    host.report()
    waiting.join(SOON_S)
    assert [(one["done"], one["progress"]["left"]) for one in found] == [(False, 1)]


def test_who_waits_gets_no_operation_on_once_the_api_stops(cloud: Cloud, clock: Clock) -> None:
    """Otherwise the stop would first have to wait for any number of operations to advance."""

    def looks() -> list[datetime]:
        return cloud.database.run(lambda session: list(session.scalars(select(Operation.look_at))), read_only=True)

    cloud.host("h1")
    claimed(cloud)
    path = f"/v1/operations/{drained(cloud).json()['id']}"
    before = looks()
    app: Any = cloud.http.app
    for stopping in (True, False):
        app.state.lifecycle.stopping = stopping
        clock.advance(5)
        asyncio.run(app.state.operations_watch.changed(uuid4(), RUNNING, 60))
        assert (looks() == before) == stopping
    assert not cloud.operator.get(path)["done"]


def test_what_needs_no_member_needs_no_body(cloud: Cloud) -> None:
    cloud.host("h1")
    claimed(cloud)
    begun = cloud.operator.ok("POST", "/v1/hosts/h1:drain", 202, headers=if_match(cloud, "h1"))
    assert begun["request"] == HostDrain().model_dump()
    ended = cloud.operator.ok("POST", f"/v1/operations/{begun['id']}:cancel", 200)
    assert (ended["state"], cloud.operator.get("/v1/hosts/h1")["state"]) == ("cancelled", "cordoned")


def test_a_repeated_key_begins_no_second_drain(cloud: Cloud) -> None:
    cloud.host("h1")
    claimed(cloud)
    headers = if_match(cloud, "h1") | {"Idempotency-Key": "again"}
    first, second = (cloud.operator("POST", "/v1/hosts/h1:drain", {}, headers=headers).json() for _ in range(2))
    assert first == second
    cloud.operator.refused(Code.IDEMPOTENCY_MISMATCH, "POST", "/v1/hosts/h1:drain", {"deadline_s": 9}, headers=headers)
    assert drained(cloud).json()["code"] == Code.HOST_DRAINING


def test_bad_requests_are_refused_by_field(cloud: Cloud) -> None:
    cloud.host("h1")
    for body, field in (
        ({"deadline_s": 0}, "$.deadline_s"),
        ({"deadline_s": 1 << 40}, "$.deadline_s"),
        ({"then": "ready"}, "$.then"),
        ({"labels": None}, "$.labels"),
        ({"labels": {"zone": "a b"}}, "$.labels.zone"),
        ({"when": 1}, "$.when"),
    ):
        said = cloud.operator.refused(
            Code.FIELD_INVALID, "POST", "/v1/hosts/h1:drain", body, headers=if_match(cloud, "h1")
        )
        assert [reason.field for reason in said.reasons] == [field]
    cloud.operator.refused(Code.GENERATION_REQUIRED, "POST", "/v1/hosts/h1:cordon")
    cloud.operator.refused(Code.FIELD_INVALID, "POST", "/v1/operations/x:cancel", {})
    for state in ("draining", "maintenance", "lost"):
        cloud.operator.refused(
            Code.FIELD_INVALID, "PATCH", "/v1/hosts/h1", {"state": state}, headers=if_match(cloud, "h1")
        )


def test_a_host_goes_through_its_states(cloud: Cloud) -> None:
    host = cloud.host("h1")
    seen = []
    for verb in ("cordon", "maintenance", "cordon", "uncordon"):
        answer = cloud.operator("POST", f"/v1/hosts/h1:{verb}", headers=if_match(cloud, "h1"))
        assert answer.headers["etag"].startswith(f'"{answer.json()["generation"]}-')
        seen.append((answer.json()["state"], host.desired().host_state))
    assert seen == [("cordoned",) * 2, ("maintenance",) * 2, ("cordoned",) * 2, ("ready",) * 2]
