# SPDX-License-Identifier: Apache-2.0
"""The metrics: all that docs/operations.md lists, and few series whatever clients send."""

import re
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from sqlalchemy import text
from vgpumgr_api.actors import local_operator
from vgpumgr_api.app import create_app
from vgpumgr_api.db.database import Database
from vgpumgr_api.installation import installation
from vgpumgr_api.observe import figures
from vgpumgr_api.observe import metrics as metrics_module

from tests.api.http.cloud import Caller, Cloud

DOCUMENTED = Path(__file__).resolve().parents[3] / "docs" / "operations.md"
# The client library adds a series for the creation time of each counter.
FAMILY = re.compile(r"^# TYPE (?!\w+_created)(\w+) \w+$", re.M)


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "FIGURES_S", 0)


@pytest.fixture
def cloud(database: Database) -> Cloud:
    return Cloud(database, create_app(database))


def said(cloud: Cloud) -> dict[str, float]:
    """Returns every sample by its name with labels."""
    lines = cloud.http.app.state.metrics.text().decode().splitlines()  # type: ignore[attr-defined]
    samples = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in samples}


def test_each_is_documented_and_each_documented_is_there(cloud: Cloud) -> None:
    cloud.tenant("acme", share_permille=1000)
    cloud.nobody("GET", "/v1/slices")
    there = set(FAMILY.findall(cloud.http.app.state.metrics.text().decode()))  # type: ignore[attr-defined]
    documented = set(re.findall(r"^\| `(vgpumgr_\w+)", DOCUMENTED.read_text(), re.M))
    assert there == documented


def test_a_request_counts_under_its_template_and_a_claim_under_its_outcome(cloud: Cloud) -> None:
    web = cloud.tenant("acme", share_permille=300, mem_bytes=1 << 40, slices=10)
    cloud.profile("p", 200)
    host = cloud.host("h1")
    wanted = {"tenant": "acme", "profile": "p"}
    web.post("/v1/slices?validate_only=true", wanted, status=200)
    made = web.post("/v1/slices", wanted)
    web("POST", "/v1/slices", wanted)  # refused: it exceeds the quota
    web("GET", f"/v1/slices/{made['id']}")
    web("GET", "/v1/slices/00000000-0000-4000-8000-000000000000")
    for number in (2, 1):
        web("POST", "/v1/slices:batch", {"slices": [wanted] * number})
    for places in (1, 3):
        web("POST", "/v1/reservations", wanted | {"places": places, "expires_in_s": 60})
    host.report()
    found = said(cloud)
    assert found['vgpumgr_claims_total{by="batch",reason="quota.exceeded",result="refused"}'] == 3
    assert found['vgpumgr_claims_total{by="reservation",reason="quota.exceeded",result="refused"}'] == 4
    assert found['vgpumgr_claims_total{by="claim",reason="",result="granted"}'] == 1
    assert found['vgpumgr_claims_total{by="claim",reason="",result="validated"}'] == 1
    assert found['vgpumgr_claims_total{by="claim",reason="quota.exceeded",result="refused"}'] == 1
    assert found['vgpumgr_requests_total{method="GET",route="/v1/slices/{slice_id}",status="200"}'] == 1
    assert found['vgpumgr_requests_total{method="GET",route="/v1/slices/{slice_id}",status="404"}'] == 1
    assert found['vgpumgr_request_duration_seconds_count{method="GET",route="/v1/slices/{slice_id}"}'] == 2
    assert found['vgpumgr_problems_total{code="object.unknown"}'] == 1
    assert found['vgpumgr_quota_used{resource="share_permille",tenant="acme"}'] == 200
    assert found['vgpumgr_quota_limit{resource="share_permille",tenant="acme"}'] == 300
    assert found['vgpumgr_granted{resource="share_permille"}'] == 200
    assert found['vgpumgr_capacity{resource="share_permille"}'] == 1000
    assert found['vgpumgr_slices{state="prepared"}'] == 1
    assert found['vgpumgr_hosts{state="ready"}'] == 1
    assert found["vgpumgr_hosts_silent"] == 0
    assert found['vgpumgr_statements_total{kind="insert",result="done"}'] > 0
    assert found["vgpumgr_statement_duration_seconds_count"] > 0
    assert found["vgpumgr_database_connections_max"] == 32
    assert found["vgpumgr_database_up"] == 1


def test_time_and_readers_show_in_heartbeats_and_the_outbox(cloud: Cloud, clock: SimpleNamespace) -> None:
    cloud.host("h1")
    clock.advance(120)
    found = said(cloud)
    assert found["vgpumgr_hosts_silent"] == 1
    assert found["vgpumgr_heartbeat_age_max_seconds"] == 120
    assert found["vgpumgr_outbox_events"] > 0
    assert found["vgpumgr_outbox_lag_seconds"] == 120
    cloud.operator.get("/v1/events")
    found = said(cloud)
    assert (found["vgpumgr_outbox_events"], found["vgpumgr_outbox_lag_seconds"]) == (0, 0)


def test_a_host_that_enrolls_is_silent_and_has_no_unknown_slices_until_it_reports(
    cloud: Cloud, database: Database
) -> None:
    host = cloud.host("h1")
    once = Caller(cloud.http, cloud.operator.post("/v1/hosts/h1:reenroll", status=200)["enroll_token"])
    host.token = once.post("/v1/enroll", {"agent_version": "1", "boot_id": str(uuid4())}, status=200)["token"]

    def told() -> tuple[float, float]:
        found = said(cloud)
        return found["vgpumgr_hosts_silent"], found["vgpumgr_hosts_with_unknown_slices"]

    assert told() == (1, 0)
    assert host.report()
    assert told() == (0, 0)
    # Like after a restore: VMs of later claims may start.
    database.run(lambda session: installation.new_epoch(session, local_operator("tests")))
    assert told() == (0, 1)


def test_hosts_that_are_two_machines_are_counted(cloud: Cloud) -> None:
    first = cloud.host("h1")
    assert first.copied().report()
    assert not first.report()
    assert said(cloud)["vgpumgr_hosts_with_second_boot"] == 0
    with pytest.raises(AssertionError, match=r"host\.second_boot"):
        first.report()
    assert said(cloud)["vgpumgr_hosts_with_second_boot"] == 1


def test_slices_whose_gpu_is_gone_are_counted(cloud: Cloud) -> None:
    host = cloud.host("h1")
    web = cloud.tenant("acme", share_permille=300, mem_bytes=1 << 40, slices=10)
    cloud.profile("p", 200)
    web.post("/v1/slices", {"tenant": "acme", "profile": "p"})
    assert said(cloud)["vgpumgr_slices_without_gpu"] == 0
    assert host.report(gpus=())
    assert said(cloud)["vgpumgr_slices_without_gpu"] == 1


def test_clients_cannot_make_series(cloud: Cloud) -> None:
    def pester(number: int) -> set[str]:
        cloud.nobody("GET", f"/v1/anything/{number}")
        cloud.nobody(f"BREW{number}", f"/v1/anything/{number}")
        cloud.nobody("GET", f"/v1/slices/{number}")
        cloud.operator("GET", f"/v1/tenants/t{number}")
        return set(said(cloud))

    pester(0)
    series = pester(1)
    assert [pester(number) for number in range(2, 12)] == [series] * 10


def test_of_many_tenants_those_closest_to_their_limits_are_shown(
    cloud: Cloud, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "TENANTS_MAX", 2)
    for name in ("a", "b", "c"):
        cloud.tenant(name, share_permille=1000)
    with database.engine.begin() as connection:
        for name, used in (("a", 10), ("b", 900), ("c", 500)):
            connection.execute(
                text(
                    "UPDATE quotas SET share_used = :used WHERE tenant_id = (SELECT id FROM tenants WHERE name = :name)"
                ),
                {"used": used, "name": name},
            )
    found = said(cloud)
    shown = {name for name in "abc" if f'vgpumgr_quota_used{{resource="slices",tenant="{name}"}}' in found}
    assert (shown, found["vgpumgr_quota_tenants_omitted"]) == ({"b", "c"}, 1)


def test_without_the_database_the_rest_is_told(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/nowhere/x.db")
    app = create_app(database)
    answer = app.state.metrics.text().decode()
    assert "vgpumgr_database_up 0.0" in answer
    assert "vgpumgr_build_info" in answer
    assert "vgpumgr_hosts{" not in answer
