# SPDX-License-Identifier: Apache-2.0
"""A client that was away for too long, or knows what a restore undid, gets 410 before a stream begins."""

from typing import Any

import pytest
from vgpumgr_api.actors import local_operator
from vgpumgr_api.events import outbox
from vgpumgr_api.installation import installation

from tests.api.http.cloud import Cloud
from vgpumgr.wire.problem import Code


@pytest.fixture
def epoch(cloud: Cloud) -> str:
    """The epoch of a log that keeps only its last two events; event streams end at once."""
    application: Any = cloud.http.app
    application.state.feed.stop()
    for number in range(3):
        cloud.operator.post("/v1/tenants", {"name": f"tenant-{number}"})
    cloud.database.run(lambda session: outbox.trim(session, kept_s=3600, kept=2))
    return str(cloud.operator.get("/v1/events")["epoch"])


def gone(cloud: Cloud, path: str, *, last_id: str = "") -> None:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    said = cloud.operator.refused(Code.WATCH_EXPIRED, "GET", path, headers=headers)
    assert said.status == 410


def test_whoever_missed_something_is_not_left_with_a_gap(cloud: Cloud, epoch: str) -> None:
    gone(cloud, "/v1/events?after=1")
    gone(cloud, "/v1/events/watch?after=1")
    gone(cloud, "/v1/events/watch", last_id=f"{epoch}-1")
    newest = cloud.operator.get("/v1/events")["items"][-1]["seq"]
    gone(cloud, "/v1/events/watch?after=0", last_id=f"{epoch}-{newest + 1}")  # takes precedence over `after`


def test_a_position_from_before_a_restore_leads_nowhere(cloud: Cloud, epoch: str) -> None:
    newest = cloud.operator.get("/v1/events")["items"][-1]["seq"]
    cloud.database.run(lambda session: installation.new_epoch(session, local_operator("tests")))
    gone(cloud, f"/v1/events?after={newest}&epoch={epoch}")
    gone(cloud, "/v1/events/watch", last_id=f"{epoch}-{newest}")
    for malformed in (f"{epoch}-", f"{epoch}-x", "x" * 65):
        cloud.operator.refused(Code.FIELD_INVALID, "GET", "/v1/events/watch", headers={"Last-Event-ID": malformed})


def test_a_watch_from_now_on_begins_behind_all_that_nobody_has_read(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "NUMBERED_AT_ONCE", 2)
    application: Any = cloud.http.app
    application.state.feed.stop()
    for number in range(3):
        cloud.operator.post("/v1/tenants", {"name": f"tenant-{number}"})
    assert cloud.database.run(outbox.has_unnumbered, read_only=True)
    assert cloud.operator("GET", "/v1/events/watch").status_code == 200
    assert not cloud.database.run(outbox.has_unnumbered, read_only=True)
