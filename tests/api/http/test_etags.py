# SPDX-License-Identifier: Apache-2.0
"""An ETag belongs to one state of one object. It never matches another object of that name, or a state from a
backup.
"""

import re
from typing import Any
from uuid import uuid4

import pytest
from vgpumgr_api.actors import local_operator
from vgpumgr_api.installation import installation

from tests.api.http.cloud import Cloud
from vgpumgr.wire.problem import Code

PROFILE = {"name": "p1", "share_permille": 100, "mem_bytes": 1 << 30}


def made_anew(cloud: Cloud, kind: str) -> tuple[str, str, str]:
    """Returns the path of an object that was deleted and made again, with the ETags of the first and the second
    object.
    """
    collection, wanted = {
        "tenants": ("/v1/tenants", {"name": "red"}),
        "quotas": ("/v1/tenants", {"name": "red"}),
        "profiles": ("/v1/profiles", PROFILE),
        "hosts": ("/v1/hosts", {"name": "h1"}),
    }[kind]
    seen = []
    for again in (False, True):
        name = cloud.operator.post(collection, wanted)["name"]
        seen.append(cloud.operator("GET", f"/v1/{kind}/{name}").headers["etag"])
        if not again:
            cloud.operator.delete(f"{collection}/{name}")
    return f"/v1/{kind}/{name}", seen[0], seen[1]


CHANGES: list[tuple[str, str, Any]] = [
    ("tenants", "DELETE", None),
    ("tenants", "PATCH", {"external_id": "red_prod"}),
    ("quotas", "PATCH", {"slices": 1}),
    ("profiles", "DELETE", None),
    ("hosts", "DELETE", None),
    ("hosts", "PATCH", {"state": "cordoned"}),
    ("hosts:cordon", "POST", None),
    ("hosts:drain", "POST", {}),
    ("hosts:fence", "POST", {"confirm": "h1", "force": True}),
]


@pytest.mark.parametrize(("kind", "method", "body"), CHANGES)
def test_what_was_made_anew_is_not_taken_for_what_was_seen(cloud: Cloud, kind: str, method: str, body: Any) -> None:
    kind, _, verb = kind.partition(":")
    path, former, present = made_anew(cloud, kind)
    assert former.partition("-")[0] == present.partition("-")[0]  # the generations alone are equal
    path += f":{verb}" if verb else ""
    said = cloud.operator.refused(Code.GENERATION_STALE, method, path, body, headers={"If-Match": former})
    assert "another" in said.detail
    assert cloud.operator(method, path, body, headers={"If-Match": present}).is_success


def test_what_a_backup_brought_back_is_not_taken_for_what_was_seen_before(cloud: Cloud) -> None:
    """After a restore, the same generations are used again for other changes."""
    cloud.operator.post("/v1/profiles", PROFILE)
    tag = cloud.operator("GET", "/v1/profiles/p1").headers["etag"]
    cloud.database.run(lambda session: installation.new_epoch(session, local_operator("tests")))
    cloud.operator.refused(Code.GENERATION_STALE, "DELETE", "/v1/profiles/p1", headers={"If-Match": tag})
    assert cloud.operator("GET", "/v1/profiles/p1").headers["etag"] != tag
    cloud.operator.delete("/v1/profiles/p1")


def test_a_confirmation_that_comes_late_confirms_no_other_restore(cloud: Cloud) -> None:
    def restored() -> None:
        cloud.database.run(lambda session: installation.new_epoch(session, local_operator("tests")))

    cloud.host("h1")
    path = "/v1/hosts/h1:confirm-epoch"
    restored()
    compared = {"If-Match": cloud.operator("GET", "/v1/hosts/h1").headers["etag"]}
    for _ in range(2):  # the first answer may have been lost
        assert cloud.operator.ok("POST", path, 200, headers=compared)["epoch_confirmed"]
    restored()
    cloud.operator.refused(Code.GENERATION_STALE, "POST", path, headers=compared)
    assert not cloud.operator.get("/v1/hosts/h1")["epoch_confirmed"]
    assert cloud.operator.ok("POST", path, 200)["epoch_confirmed"]


def test_a_claim_answers_with_the_etag_that_it_is_read_with(cloud: Cloud) -> None:
    cloud.host("h1")
    cloud.profile("half", 500)
    red = cloud.tenant("red", share_permille=1000, mem_bytes=1 << 40, slices=4)
    for _ in range(2):  # the second request finds its caller in the cache
        claimed = red("POST", "/v1/slices", {"tenant": "red", "profile": "half", "vm_uuid": str(uuid4())})
        read = red("GET", f"/v1/slices/{claimed.json()['id']}")
        assert claimed.headers["etag"] == read.headers["etag"]
        assert re.fullmatch(r'"1-[0-9a-f]{16}"', read.headers["etag"])


def test_a_generation_alone_still_says_that_nothing_was_changed(cloud: Cloud) -> None:
    """Clients of the first release send only the generation."""
    cloud.operator.post("/v1/profiles", PROFILE)
    cloud.operator.refused(Code.GENERATION_STALE, "DELETE", "/v1/profiles/p1", headers={"If-Match": '"2"'})
    cloud.operator.ok("DELETE", "/v1/profiles/p1", 204, headers={"If-Match": '"1"'})
