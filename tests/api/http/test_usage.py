# SPDX-License-Identifier: Apache-2.0
"""The ledger over HTTP: the CSV has the same content as the list, and invalid requests are refused before output
starts.
"""

import csv
import io
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from starlette.requests import Request
from vgpumgr_api.actors import Actor
from vgpumgr_api.errors import Refusal
from vgpumgr_api.usage import books

from tests.api.conftest import Clock
from tests.api.http.cloud import GIB, GPU, Cloud
from vgpumgr.wire.problem import Code
from vgpumgr.wire.usage import LedgerRow, UnbookedRow


def test_the_csv_says_what_the_list_says_over_many_pages(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgpumgr_api.routes.usage.PAGE_SIZE_MAX", 2)
    host = cloud.host("h1")
    cloud.operator.post("/v1/profiles", {"name": "p1", "share_permille": 10, "mem_bytes": GIB})
    hour = cloud.database.clock().replace(minute=0, second=0, microsecond=0)
    readings = []
    for number, name in enumerate(("acme", "blue", "cyan", "dark", "echo"), start=1):
        owner = cloud.tenant(name, share_permille=9000, mem_bytes=99 * GIB, slices=9)
        owner.post("/v1/slices", {"tenant": name, "profile": "p1"})
        said = dict.fromkeys(("assured_ns", "throttled_ns", "reserved_ns"), 0)
        said |= {"hour": int(hour.timestamp()) // 3600, "revision": number, "run_ns": number, "due_ns": -number}
        readings.append(said | {"gpu": GPU, "tenant": name})
    said = {"meter_id": str(uuid4()), "after": 0, "through": 5, "newest": 5, "readings": readings}
    assert host.post(f"/v1/hosts/{host.id}/usage", said, status=200)["revision"] == 5

    since, until = hour - timedelta(hours=1), hour + timedelta(hours=2)
    asked = f"since={since:%Y-%m-%dT%H:%M:%SZ}&until={until:%Y-%m-%dT%H:%M:%SZ}"
    answer = cloud.operator("GET", f"/v1/usage/ledger.csv?{asked}")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert list(rows[0]) == list(LedgerRow.model_fields)
    assert [(row["tenant"], row["run_ns"], row["due_ns"], row["correction"]) for row in rows] == [
        (name, str(number), str(-number), "false")
        for number, name in enumerate(("acme", "blue", "cyan", "dark", "echo"), start=1)
    ]
    # A client whose token is revoked in the meantime gets no further page.
    seen = []

    def once(request: Request) -> Actor:
        seen.append(request)
        raise Refusal(Code.AUTH_INVALID, "this token was revoked")

    monkeypatch.setattr("vgpumgr_api.routes.usage.authenticate", once)
    with pytest.raises(RuntimeError, match="already started"):
        cloud.operator("GET", f"/v1/usage/ledger.csv?{asked}")
    assert len(seen) == 1

    listed = cloud.operator.get(f"/v1/usage/ledger?{asked}")["items"]
    assert [(row["tenant"], row["run_ns"]) for row in listed] == [(row["tenant"], int(row["run_ns"])) for row in rows]
    assert len(cloud.operator.get(f"/v1/usage/grants?{asked}")["items"]) == 5


def test_what_the_ledger_lacks_comes_as_a_list_and_as_csv(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgpumgr_api.routes.usage.PAGE_SIZE_MAX", 2)
    host = cloud.host("h1")
    hour = cloud.database.clock().replace(minute=0, second=0, microsecond=0)
    counts = {"assured_ns": 0, "throttled_ns": 0, "reserved_ns": 0, "due_ns": -1, "run_ns": 7}
    of = {"hour": int(hour.timestamp()) // 3600, "gpu": GPU} | counts
    readings = [of | {"revision": number, "tenant": f"ghost{number}"} for number in (1, 2, 3)]
    said = {"meter_id": str(uuid4()), "after": 0, "through": 3, "newest": 3, "readings": readings}
    host.post(f"/v1/hosts/{host.id}/usage", said, status=200)

    listed = cloud.operator.get("/v1/usage/unbooked?host=h1&reason=unattributed")["items"]
    assert [row["tenant"] for row in listed] == ["ghost1", "ghost2", "ghost3"]
    assert {(row["run_ns"], row["due_ns"]) for row in listed} == {(7, -1)}
    answer = cloud.operator("GET", "/v1/usage/unbooked.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert list(rows[0]) == list(UnbookedRow.model_fields)
    assert [row["tenant"] for row in rows] == [row["tenant"] for row in listed]
    assert {row["since"] for row in rows} == {f"{hour:%Y-%m-%dT%H:%M:%SZ}"}
    for query in ("reason=other", "since=2026-11-21", "host=H1", "page_token=x"):
        cloud.operator.refused(Code.FIELD_INVALID, "GET", f"/v1/usage/unbooked?{query}")


def test_a_list_of_what_the_ledger_lacks_goes_on_after_the_longest_names(cloud: Cloud) -> None:
    host = cloud.host("h" * 63)
    hour = int(cloud.database.clock().timestamp()) // 3600
    names = ["\U0001f600" * 63, "\U0001f600" * 62 + "\u00e9", '"' * 63, "\\" * 63, "\x1f" * 63]
    counts = dict.fromkeys(("run_ns", "due_ns", "assured_ns", "throttled_ns", "reserved_ns"), 1)
    readings = [
        {"hour": hour, "gpu": GPU, "revision": number, "tenant": name} | counts
        for number, name in enumerate(names, start=1)
    ]
    told = {"meter_id": str(uuid4()), "after": 0, "through": len(names), "newest": len(names), "readings": readings}
    host.post(f"/v1/hosts/{host.id}/usage", told, status=200)

    path = f"/v1/usage/unbooked?host={host.name}"
    whole = cloud.operator.get(path)["items"]
    assert len(whole) == len(names)
    items, token = [], ""
    for _ in names:
        page = cloud.operator.get(f"{path}&page_size=1&page_token={token}")
        items += page["items"]
        token = page["next_page_token"]
    assert (items, token) == (whole, "")


def test_no_name_that_a_host_says_is_a_formula_in_the_csv(cloud: Cloud) -> None:
    host = cloud.host("h1")
    hour = int(cloud.database.clock().timestamp()) // 3600
    said = {
        "+cmd": "?cmd", "-1": "?1", "=1+1": "?1?1", "@sum": "?sum", "\t=1": "??1", "a b": "a?b", "a;=b": "a??b",
        "a\r\n=b": "a???b", "é": "?", "": "", 'a",=b': "a???b", "a-b.c:d_e": "a-b.c:d_e",
    }  # fmt: skip
    counts = dict.fromkeys(("due_ns", "assured_ns", "throttled_ns", "reserved_ns"), 0)
    readings = [
        {"hour": hour, "gpu": GPU, "revision": number, "tenant": name, "run_ns": number} | counts
        for number, name in enumerate(said, start=1)
    ]
    told = {"meter_id": str(uuid4()), "after": 0, "through": len(said), "newest": len(said), "readings": readings}
    host.post(f"/v1/hosts/{host.id}/usage", told, status=200)

    rows = csv.DictReader(io.StringIO(cloud.operator("GET", "/v1/usage/unbooked.csv").text))
    assert {int(row["run_ns"]): row["tenant"] for row in rows} == dict(enumerate(said.values(), start=1))
    listed = cloud.operator.get("/v1/usage/unbooked")["items"]
    assert {row["tenant"] for row in listed} >= {"=1+1", "a;=b", "é"}, "the list has what the host said"


def test_what_cannot_be_asked_is_a_problem_not_half_a_file(cloud: Cloud) -> None:
    for path in ("/v1/usage/ledger", "/v1/usage/ledger.csv"):
        for query in (
            "",
            "since=2026-11-21T00:00:00Z",
            "since=2026-11-21T00:30:00Z&until=2026-11-22T00:00:00Z",
            "since=2026-11-22T00:00:00Z&until=2026-11-21T00:00:00Z",
            "since=2020-01-01T00:00:00Z&until=2026-11-22T00:00:00Z&granularity=hour",
            "since=2026-11-21T00:00:00&until=2026-11-22T00:00:00Z",
            "since=2026-11-21T00:00:00Z&until=2026-11-22T00:00:00Z&by=colour",
        ):
            cloud.operator.refused(Code.FIELD_INVALID, "GET", f"{path}?{query}")


@pytest.mark.parametrize(
    "instant",
    ["0001-01-01T00:00:00%2B01:01", "0001-12-31T23:59:59Z", "9999-12-31T23:59:59-12:00", "9999-01-01T00:00:00Z"],
)
def test_instants_at_the_end_of_time_are_refused_wherever_one_is_asked_for(cloud: Cloud, instant: str) -> None:
    for path in ("/v1/usage/ledger", "/v1/usage/ledger.csv", "/v1/usage/grants", "/v1/audit"):
        for query in (f"since={instant}&until=2026-11-22T00:00:00Z", f"since=2026-11-22T00:00:00Z&until={instant}"):
            said = cloud.admin.refused(Code.FIELD_INVALID, "GET", f"{path}?{query}")
            assert "years 2 and 9998" in said.detail
    query = f"since=2026-11-21T00:00:00Z&until=2026-11-22T00:00:00Z&as_of={instant}"
    cloud.admin.refused(Code.FIELD_INVALID, "GET", f"/v1/usage/ledger?{query}")


@pytest.mark.parametrize(
    "instant", ["0", "142962842", "-3600", "1795262400000", "1e9", "3600.0", "now", "12:00:00Z", ""]
)
def test_a_number_is_no_instant(cloud: Cloud, instant: str) -> None:
    for path in ("/v1/usage/unbooked", "/v1/usage/unbooked.csv", "/v1/audit"):
        for name in ("since", "until"):
            cloud.admin.refused(Code.FIELD_INVALID, "GET", f"{path}?{name}={instant}")
    hours = "since=2026-11-21T00:00:00Z&until=2026-11-22T00:00:00Z"
    cloud.admin.refused(Code.FIELD_INVALID, "GET", f"/v1/usage/ledger?{hours}&as_of={instant}")


@pytest.mark.parametrize("granularity", ["hour", "day", "total"])
def test_the_first_and_the_last_instants_that_can_be_asked_for_are_answered(cloud: Cloud, granularity: str) -> None:
    for since, until in (
        ("0002-01-01T00:00:00Z", "0002-01-02T00:00:00Z"),
        ("9998-12-31T00:00:00%2B12:00", "9998-12-31T23:00:00-12:00"),
    ):
        answer = cloud.admin("GET", f"/v1/usage/ledger?since={since}&until={until}&granularity={granularity}")
        assert answer.status_code in (200, 410), answer.text
        assert cloud.admin("GET", f"/v1/usage/grants?since={since}&until={until}").status_code in (200, 410)


@pytest.mark.parametrize("path", ["usage/ledger", "usage/ledger.csv", "usage/grants", "usage/unbooked", "audit"])
def test_a_time_in_which_nothing_can_be_is_refused(cloud: Cloud, path: str) -> None:
    for until in ("2026-11-21T12:00:00Z", "2026-11-21T11:00:00Z"):
        asked = f"/v1/{path}?since=2026-11-21T12:00:00Z&until={until}"
        said = cloud.admin.refused(Code.FIELD_INVALID, "GET", asked)
        assert [reason.field for reason in said.reasons] == ["query.until"]


def test_of_hours_without_rows_it_is_said_whether_more_may_come(cloud: Cloud, clock: Clock) -> None:
    """For a closed hour, no rows mean zero. For an open or future hour, they mean that nothing is known yet."""
    own = cloud.tenant("acme")
    hours = "since=2026-11-21T{}:00:00Z&until=2026-11-21T{}:00:00Z&granularity=hour"
    for minutes, closed in ((0, 12), (44, 12), (45, 13)):
        clock.now = datetime(2026, 11, 21, 12, 30, tzinfo=UTC) + timedelta(minutes=minutes)
        cloud.database.run(lambda session: books.tend(session, kept_days=0))
        for asked in (hours.format(12, 13), hours.format(20, 23)):
            said = own.get(f"/v1/usage/ledger?{asked}")
            assert said["items"] == []
            assert datetime.fromisoformat(said["closed_before"]) == datetime(2026, 11, 21, closed, tzinfo=UTC)
