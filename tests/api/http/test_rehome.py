# SPDX-License-Identifier: Apache-2.0
"""Moving the claims of a GPU to another GPU over HTTP."""

from typing import Any

import pytest

from tests.api.http.cloud import GIB, GPU, Cloud
from vgpumgr.wire.problem import Code

OTHER = "0000:00:11.0"


@pytest.fixture
def gone(cloud: Cloud) -> dict[str, Any]:
    """A GPU with a claim that is no longer in its host. The host has another GPU."""
    host = cloud.host("h1")
    cloud.tenant("acme", share_permille=1000, mem_bytes=8 * GIB, slices=4)
    cloud.operator.post("/v1/profiles", {"name": "p1", "share_permille": 100, "mem_bytes": GIB})
    cloud.operator.post("/v1/slices", {"tenant": "acme", "profile": "p1"})
    assert host.report(gpus=(OTHER,), obey=False)
    return gpu_at(cloud, GPU)


def gpu_at(cloud: Cloud, address: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in cloud.operator.get("/v1/gpus")["items"] if each["address"] == address)
    return found


def etag(cloud: Cloud, one: dict[str, Any]) -> dict[str, str]:
    return {"If-Match": cloud.operator("GET", f"/v1/gpus/{one['id']}").headers["etag"]}


def test_the_answer_is_an_operation_that_is_done(cloud: Cloud, gone: dict[str, Any]) -> None:
    body = {"to": gpu_at(cloud, OTHER)["id"]}
    answer = cloud.operator("POST", f"/v1/gpus/{gone['id']}:rehome", body, headers=etag(cloud, gone))
    done = answer.json()
    path = f"/v1/operations/{done['id']}"
    assert (answer.status_code, answer.headers["location"]) == (202, path)
    assert (done["kind"], done["target"], done["state"], done["done"]) == (
        "gpu.rehome", f"h1/{GPU}", "succeeded", True,
    )  # fmt: skip
    assert (done["request"], done["result"]["moved"]) == (body, 1)
    assert cloud.operator.get(path) == done
    assert cloud.operator.get(f"{path}?wait_s=5") == done
    assert cloud.operator.get("/v1/operations?kind=gpu.rehome")["items"] == [done]
    [claim] = cloud.operator.get("/v1/slices")["items"]
    assert (claim["gpu"], claim["state_reason"]) == (OTHER, "")


def test_a_lost_answer_is_given_again(cloud: Cloud, gone: dict[str, Any]) -> None:
    path, body = f"/v1/gpus/{gone['id']}:rehome", {"to": gpu_at(cloud, OTHER)["id"]}
    headers = etag(cloud, gone) | {"Idempotency-Key": "once"}
    first, again = (cloud.operator.ok("POST", path, 202, body, headers=headers) for _ in range(2))
    assert first == again
    assert first["result"]["moved"] == 1
    cloud.operator.refused(Code.IDEMPOTENCY_MISMATCH, "POST", path, {"to": gone["id"]}, headers=headers)
    cloud.operator.refused(Code.GENERATION_STALE, "POST", path, body, headers=headers | {"Idempotency-Key": "two"})


def test_it_can_be_tried(cloud: Cloud, gone: dict[str, Any]) -> None:
    path, body = f"/v1/gpus/{gone['id']}:rehome?validate_only=true", {"to": gpu_at(cloud, OTHER)["id"]}
    tried = cloud.operator.ok("POST", path, 200, body, headers=etag(cloud, gone))
    assert tried["result"]["moved"] == 1
    assert [each["gpu"] for each in cloud.operator.get("/v1/slices")["items"]] == [GPU]
    assert cloud.operator.get("/v1/operations")["items"] == []


def test_refusals_say_which_member_is_wrong(cloud: Cloud, gone: dict[str, Any]) -> None:
    path, headers = f"/v1/gpus/{gone['id']}:rehome", etag(cloud, gone)
    for body, field in (({}, "$.to"), ({"to": "x"}, "$.to"), ({"to": gone["id"]}, "$.to"), ({"for": 1}, "$.to")):
        said = cloud.operator.refused(Code.FIELD_INVALID, "POST", path, body, headers=headers)
        assert said.reasons[0].field == field
    cloud.operator.refused(Code.GENERATION_REQUIRED, "POST", path, {"to": gpu_at(cloud, OTHER)["id"]})
    there = gpu_at(cloud, OTHER)
    said = cloud.operator.refused(
        Code.GPU_PRESENT, "POST", f"/v1/gpus/{there['id']}:rehome", {"to": gone["id"]}, headers=etag(cloud, there)
    )
    assert OTHER in said.detail
