# SPDX-License-Identifier: Apache-2.0
"""What clients see of a host that is two machines."""

from tests.api.http.cloud import Cloud, Host
from vgpumgr.wire.problem import Code


def report_of(host: Host) -> dict[str, object]:
    """Returns the next report of a host without devices."""
    host.seq += 1
    return {
        "boot_id": str(host.boot_id),
        "agent_epoch": host.agent_epoch,
        "seq": host.seq,
        "agent_version": "1",
        "desired_epoch": None,
        "desired_generation": 0,
        "gpus": [],
        "groups": [],
        "slices": [],
        "refusals": [],
    }


def test_the_second_machine_is_refused_and_the_host_says_why(cloud: Cloud) -> None:
    first = cloud.host("h1")
    other = first.copied()
    before = cloud.operator.get("/v1/hosts/h1")
    assert (before["state_reason"], before["second_boot_at"]) == ("", None)
    assert other.report()
    path = f"/v1/hosts/{first.id}/report"
    assert first.ok("POST", path, 200, report_of(first))["accepted"] is False
    for _ in range(2):
        said = first.refused(Code.HOST_SECOND_BOOT, "POST", path, report_of(first))
        assert "host h1" in said.detail
    host = cloud.operator.get("/v1/hosts/h1")
    assert host["state_reason"] == "host.second_boot"
    assert host["second_boot_at"]
    kinds = [event["kind"] for event in cloud.operator.get("/v1/events?about=host")["items"]]
    assert kinds.count("host.second_boot") == 1
    assert other.report()
    assert first("GET", f"/v1/hosts/{first.id}/desired").is_success
