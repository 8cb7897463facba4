# SPDX-License-Identifier: Apache-2.0
"""Every filter of every list shows exactly the matching items of the whole list; page tokens belong to their
filters.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.api.http.cloud import GIB, GPU, Cloud
from vgpumgr.wire.problem import Code

OTHER_GPU = "0000:00:11.0"
ELSEWHERE = {
    **dict.fromkeys(("/v1/audit", "/v1/events", "/v1/usage"), "its own tests"),
    **dict.fromkeys(("/v1/usage/ledger", "/v1/usage/grants", "/v1/usage/unbooked"), "its own tests"),
    "/v1/operations": "tests of operations",
}
PLENTY = {"share_permille": 9000, "mem_bytes": 99 * GIB, "slices": 9}

Says = Callable[[Any], Any]


def labelled(*hosts: Any) -> Says:
    """Returns a function that gives the labels of a GPU or host, including those that a GPU has from its host."""
    of = {host["name"]: host["labels"] for host in hosts}
    return lambda item: of.get(item.get("host"), {}) | item["labels"]


@dataclass(frozen=True)
class Filter:
    """`says`: returns the value of an item for the filter. `values`: for a requested value, the value that items then
    show.
    """

    says: Says
    values: dict[str, Any] = field(default_factory=dict)

    def wanted(self, value: str, item: Any) -> bool:
        said, asked = self.says(item), self.values.get(value, value)
        return all(said.get(key) == each for key, each in asked.items()) if isinstance(asked, dict) else said == asked


def member(name: str, *values: str) -> Filter:
    return Filter(lambda item: item[name], {each: each for each in values})


YES = {"true": True, "false": False}


@pytest.fixture
def full(cloud: Cloud) -> Cloud:
    """Two objects of each kind that differ in everything that filters can select."""
    cloud.tenant("acme", **PLENTY)
    cloud.tenant("blue", account="acme", **PLENTY)
    cloud.tenant("other", **PLENTY)
    cloud.profile("fair", 100)
    cloud.profile("strict", 100, mode="strict")
    one = cloud.host("one", gpus=[GPU, OTHER_GPU])
    cloud.host("two")
    cloud.operator.patch("/v1/tenants/acme", {"external_id": "acme_prod"})
    cloud.operator.patch("/v1/tenants/blue", {"external_id": "Blau & Söhne"})
    cloud.operator.post("/v1/hosts", {"name": "new"})
    cloud.host("dead")
    etag = cloud.operator("GET", "/v1/hosts/dead").headers["etag"]
    fence = {"confirm": "dead", "force": True}
    cloud.operator.ok("POST", "/v1/hosts/dead:fence", 200, fence, headers={"If-Match": etag})
    cloud.operator.patch("/v1/hosts/one", {"labels": {"zone": "a", "rack": "7"}})
    cloud.operator.patch("/v1/hosts/two", {"labels": {"zone": "b", "rack": "7"}})
    own = next(each for each in cloud.operator.get("/v1/gpus")["items"] if each["address"] == OTHER_GPU)
    cloud.operator.patch(f"/v1/gpus/{own['id']}", {"labels": {"zone": "c"}})
    claims = [{"profile": "fair", "host": "one", "vm_uuid": str(uuid4())}, {"profile": "strict", "host": "two"}]
    for tenant, claim in zip(("blue", "other"), claims, strict=True):
        cloud.operator.post("/v1/slices", claim | {"tenant": tenant})
        held = {"tenant": tenant, "profile": claim["profile"], "places": 1, "expires_in_s": 60}
        cloud.operator.post("/v1/reservations", held)
    one.report(gpus=[GPU])
    cloud.operator.patch("/v1/hosts/two", {"state": "cordoned"})
    cloud.token(role="viewer", expires_in_s=60)
    return cloud


def filters(cloud: Cloud) -> dict[str, dict[str, Filter]]:
    hosts = cloud.operator.get("/v1/hosts")["items"]
    accounts = {each["name"]: each["account"] or each["name"] for each in cloud.operator.get("/v1/tenants")["items"]}
    states = {host["name"]: host["state"] for host in hosts}
    slices = cloud.operator.get("/v1/slices")["items"]
    selector = {"zone=a": {"zone": "a"}, "rack=7,zone=b": {"zone": "b", "rack": "7"}, "zone=c": {"zone": "c"}}
    return {
        "/v1/tenants": {
            "kind": member("kind", "account", "project"),
            "account": Filter(lambda item: accounts[item["name"]], {"acme": "acme", "other": "other"}),
            "external_id": Filter(
                lambda item: item["external_id"], {"acme_prod": "acme_prod", "Blau+%26+S%C3%B6hne": "Blau & Söhne"}
            ),
        },
        "/v1/quotas": {"account": Filter(lambda item: accounts[item["tenant"]], {"acme": "acme", "other": "other"})},
        "/v1/profiles": {"mode": member("mode", "strict", "fair")},
        "/v1/hosts": {
            "state": member("state", "ready", "cordoned", "lost"),
            "online": Filter(lambda item: item["online"], YES),
            "enrolled": Filter(lambda item: item["enrolled"], YES),
            "fenced": Filter(lambda item: item["fenced_at"] is not None, YES),
            "epoch_confirmed": Filter(lambda item: item["epoch_confirmed"], YES),
            "selector": Filter(lambda item: item["labels"], selector),
        },
        "/v1/gpus": {
            "host": member("host", "one", "two"),
            "host_state": Filter(lambda item: states[item["host"]], {"ready": "ready", "cordoned": "cordoned"}),
            "present": Filter(lambda item: item["present"], YES),
            "selector": Filter(labelled(*hosts), selector),
        },
        "/v1/slices": {
            "tenant": member("tenant", "blue", "other"),
            "host": member("host", "one", "two"),
            "vm_uuid": member("vm_uuid", *(each["vm_uuid"] for each in slices if each["vm_uuid"])),
            "state": member("state", "claimed", "releasing"),
            "profile": member("profile", "fair", "strict"),
            "gpu_id": member("gpu_id", *(each["gpu_id"] for each in slices)),
        },
        "/v1/reservations": {
            "tenant": member("tenant", "blue", "other"),
            "profile": member("profile", "fair", "strict"),
        },
        "/v1/tokens": {
            "role": member("role", "viewer", "operator", "host"),
            "subject": member("subject", "blue", "one"),
            "expired": Filter(lambda _: False, YES),
        },
    }


def test_a_filter_shows_of_the_list_what_fits(full: Cloud) -> None:
    for path, names in filters(full).items():
        whole = full.operator.get(path)["items"]
        for name, each in names.items():
            chosen = 0
            for value in each.values:
                said = full.operator.get(f"{path}?{name}={value}")["items"]
                assert said == [item for item in whole if each.wanted(value, item)], (path, name, value)
                chosen += bool(said)
            assert chosen, f"{path}: nothing has any {name}"

    # Several filters select what matches all of them.
    together = full.operator.get("/v1/hosts?state=ready&online=true&selector=zone=a")["items"]
    assert [host["name"] for host in together] == ["one"]
    assert full.operator.get("/v1/hosts?state=cordoned&selector=zone=a")["items"] == []
    assert len(full.operator.get("/v1/slices?tenant=blue&profile=fair")["items"]) == 1
    assert full.operator.get("/v1/slices?tenant=blue&profile=strict")["items"] == []


def test_an_expired_token_is_told_from_those_that_last(full: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    at = full.database.clock()
    monkeypatch.setattr(full.database, "clock", lambda: at + timedelta(seconds=61))
    (gone,) = full.operator.get("/v1/tokens?expired=true")["items"]
    assert gone["role"] == "viewer"
    assert gone not in full.operator.get("/v1/tokens?expired=false")["items"]


def test_a_page_token_belongs_to_its_filters(full: Cloud) -> None:
    tried = 0
    for path, names in filters(full).items():
        for name, each in names.items():
            for value in each.values:
                page = full.operator.get(f"{path}?{name}={value}&page_size=1")
                if not page["next_page_token"]:
                    continue
                tried += 1
                token = f"page_token={page['next_page_token']}"
                full.operator.ok("GET", f"{path}?{name}={value}&{token}", 200)
                for other in ("", *(f"{name}={another}&" for another in each.values if another != value)):
                    full.operator.refused(Code.FIELD_INVALID, "GET", f"{path}?{other}{token}")
    assert tried >= 8


WRONG = [
    ("/v1/hosts?status=ready", "query.status"),
    ("/v1/hosts?state=Ready", "query.state"),
    ("/v1/hosts?online=maybe", "query.online"),
    ("/v1/hosts?selector=zone", "query.selector"),
    ("/v1/hosts?selector=zone=a,zone=b", "query.selector"),
    ("/v1/hosts?selector=zone=a&selector=zone=b", "query.selector"),
    ("/v1/hosts?selector=" + ",".join(f"k{n}=v" for n in range(17)), "query.selector"),
    ("/v1/gpus?selector=", "query.selector"),
    ("/v1/gpus?host_state=gone", "query.host_state"),
    ("/v1/tenants?kind=team", "query.kind"),
    ("/v1/tenants?external_id=", "query.external_id"),
    ("/v1/tenants?external_id=a%0A", "query.external_id"),
    ("/v1/tenants?external_id=" + "a" * 256, "query.external_id"),
    ("/v1/profiles?mode=", "query.mode"),
    ("/v1/slices?gpu_id=1", "query.gpu_id"),
    ("/v1/operations?kind=drain", "query.kind"),
    ("/v1/operations?kind=Host.drain", "query.kind"),
    ("/v1/audit?action=slice", "query.action"),
    ("/v1/audit?action=slice.claimed%20", "query.action"),
    ("/v1/tokens?role=root", "query.role"),
    ("/v1/tokens?subject=A", "query.subject"),
]


def test_what_no_item_can_be_is_refused_by_name(cloud: Cloud) -> None:
    for query, name in WRONG:
        said = cloud.operator.refused(Code.FIELD_INVALID, "GET", query)
        assert {each.field for each in said.reasons} == {name}


def test_whatever_was_written_down_can_be_asked_for(full: Cloud) -> None:
    """A kind from another release finds nothing; a kind of this release finds its entries."""
    entries = full.admin.get("/v1/audit?page_size=1000")["items"]
    actions = {each["action"] for each in entries}
    assert len(actions) > 10
    for action in actions:
        said = full.admin.get(f"/v1/audit?action={action}&page_size=1000")["items"]
        assert said == [each for each in entries if each["action"] == action]
    assert full.admin.get("/v1/audit?action=volcano.has_erupted")["items"] == []
    assert full.operator.get("/v1/operations?kind=host.painted")["items"] == []


def test_names_that_there_are_not_are_told_and_those_of_others_are_such(full: Cloud) -> None:
    for query in ("/v1/tenants?account=gone", "/v1/quotas?account=gone", "/v1/slices?profile=gone"):
        full.operator.refused(Code.OBJECT_UNKNOWN, "GET", query)
    assert full.operator.get("/v1/tokens?subject=gone")["items"] == []
    assert full.operator.get(f"/v1/slices?gpu_id={UUID(int=7)}")["items"] == []
    own = full.token(role="tenant", subject="blue")
    for path in ("/v1/tenants", "/v1/quotas"):
        details = {
            own.refused(Code.OBJECT_UNKNOWN, "GET", f"{path}?account={name}").detail.replace(name, "")
            for name in ("other", "acme", "gone")
        }
        assert len(details) == 1, "others' accounts are told from those that there are not"


def test_every_filter_of_the_document_is_tried_here(cloud: Cloud) -> None:
    paths = cloud.operator.get("/openapi.json")["paths"]
    documented: dict[str, set[str]] = {}
    for path, methods in paths.items():
        operation = methods.get("get", {})
        if operation.get("operationId", "").startswith("list_"):
            named = {each["name"] for each in operation["parameters"] if each["in"] == "query"}
            documented[path] = named - {"page_size", "page_token"}
    assert {path: set(names) for path, names in filters(cloud).items()} == {
        path: names for path, names in documented.items() if path not in ELSEWHERE
    }
