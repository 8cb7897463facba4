# SPDX-License-Identifier: Apache-2.0
"""The agent's file for the node exporter: complete, escaped, documented, and never an obstacle for the agent."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from vgpumgr_agent import metrics
from vgpumgr_agent.api import ApiAwayError
from vgpumgr_agent.config import ConfigError, load
from vgpumgr_agent.documents import Stamp
from vgpumgr_agent.reconcile import Orphans

from tests.agent.fakeapi import FakeApi, group
from tests.agent.host import VM, A, B, Host
from tests.agent.test_meter import run
from tests.agent.test_reconcile import observed, seen, seen_group

DOCUMENTED = Path(__file__).parents[2] / "docs" / "agent.md"
LINE = re.compile(r'^[a-z_]+(\{([a-z_]+="([^"\\\n]|\\.)*",?)+\})? (-?[0-9.e+-]+|\+Inf)$')


@pytest.fixture
def shown(host: Host, tmp_path: Path) -> Path:
    path = tmp_path / "agent.prom"
    show(host, path)
    return path


def show(host: Host, path: Path) -> None:
    """Have the present agent write its metrics to that file."""
    host.agent._config = host.agent._config.model_copy(update={"metrics_file": path})


def samples(path: Path) -> dict[str, float]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert all(LINE.match(line) for line in lines)
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def of(uuid: UUID, path: Path) -> dict[str, float]:
    """Return the samples of a slice, by the metric's name alone."""
    return {name.partition("{")[0]: value for name, value in samples(path).items() if f'slice="{uuid}"' in name}


def work(host: Host, uuid: UUID, **changes: Any) -> None:
    """The kernel adds to the counters of a slice."""
    with host.kernel.lock:
        host.kernel.slices[str(uuid)] = replace(host.kernel.slices[str(uuid)], **changes)


def test_none_is_written_unless_asked_for(claimed: Host, tmp_path: Path) -> None:
    claimed.reconcile()
    assert not list(tmp_path.rglob("*.prom"))


def test_counters_devices_and_the_api_are_shown(claimed: Host, shown: Path) -> None:
    claimed.start(A, B)
    claimed.kernel.open(str(A))
    run(claimed, 2_500_000_000)
    claimed.reconcile()
    found = samples(shown)
    assert found['vgpumgr_group_run_seconds_total{gpu="0000:00:10.0",tenant="blue"}'] == 2.5
    assert (found['vgpumgr_agent_slices{state="open"}'], found['vgpumgr_agent_slices{state="idle"}']) == (1, 1)
    assert (found["vgpumgr_agent_kernel_up"], found["vgpumgr_agent_problems"]) == (1, 0)
    assert shown.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in shown.parent.glob("*agent.prom*")] == ["agent.prom"]


def test_each_slice_says_whose_it_is_and_what_it_uses(claimed: Host, shown: Path) -> None:
    claimed.start(A, B)
    claimed.kernel.open(str(A))
    work(claimed, A, run_ns=2_500_000_000, ghost_ns=500_000_000, items=7, queued=3, dma_bytes=4096)
    work(claimed, B, throttled=True, error=3, errors=2)
    claimed.reconcile()
    named = f'vgpumgr_slice_info{{slice="{A}",vm_uuid="{VM}",tenant="blue",gpu="0000:00:10.0"}}'
    assert samples(shown)[named] == 1
    assert of(A, shown) == {
        "vgpumgr_slice_info": 1,
        "vgpumgr_slice_open": 1,
        "vgpumgr_slice_memory_bytes": 16 << 20,
        "vgpumgr_slice_run_seconds_total": 2.5,
        "vgpumgr_slice_ghost_seconds_total": 0.5,
        "vgpumgr_slice_items_total": 7,
        "vgpumgr_slice_queued_items": 3,
        "vgpumgr_slice_dma_bytes_total": 4096,
        "vgpumgr_slice_throttled": 0,
        "vgpumgr_slice_error": 0,
        "vgpumgr_slice_errors_total": 0,
    }
    other = of(B, shown)
    assert [other[f"vgpumgr_slice_{name}"] for name in ("open", "throttled", "error", "errors_total")] == [0, 1, 3, 2]


def test_a_slice_that_goes_takes_its_series_with_it(claimed: Host, shown: Path) -> None:
    claimed.start(A, B)
    claimed.reconcile()
    assert of(A, shown)
    claimed.release(A)
    claimed.reconcile()
    assert (of(A, shown), of(B, shown)["vgpumgr_slice_info"]) == ({}, 1)


def test_problems_are_counted(claimed: Host, shown: Path) -> None:
    claimed.kernel.fail["set_tenant"] = [34] * 9
    claimed.api.set(groups=[group("blue", 150), group("green", 300)])
    claimed.learn()
    assert samples(shown)["vgpumgr_agent_problems"] == 1


def test_orphans_are_counted_and_names_escaped(claimed: Host, tmp_path: Path) -> None:
    found = observed(seen(A, tenant='a"b\\c', vm_uuid=None), groups=(seen_group('a"b\\c', lag_ns=-1_500_000_000),))
    state = metrics.State(
        observed=found,
        orphans=Orphans(slices=frozenset({A, B}), groups=frozenset({("gpu", "x")})),
        problems=0,
        api_reachable=False,
        contact_s=None,
        certificate_s=None,
        told={("report", "delivered"): 3},
        at_s=1.5,
    )
    metrics.write(tmp_path / "x.prom", metrics.text(state))
    said = samples(tmp_path / "x.prom")
    assert (said['vgpumgr_agent_orphans{kind="slice"}'], said['vgpumgr_agent_orphans{kind="group"}']) == (2, 1)
    assert said['vgpumgr_group_weight{gpu="0000:00:10.0",tenant="a\\"b\\\\c"}'] == 300
    assert said['vgpumgr_group_lag_seconds{gpu="0000:00:10.0",tenant="a\\"b\\\\c"}'] == -1.5
    assert said[f'vgpumgr_slice_info{{slice="{A}",vm_uuid="",tenant="a\\"b\\\\c",gpu="0000:00:10.0"}}'] == 1
    assert said['vgpumgr_agent_told_total{kind="report",result="delivered"}'] == 3
    assert "vgpumgr_agent_api_answer_age_seconds" not in said


def test_how_long_the_api_has_not_answered_outlives_agent_and_boot(claimed: Host, shown: Path) -> None:
    """Claim leases also count from that moment."""
    name = "vgpumgr_agent_api_answer_age_seconds"
    claimed.reconcile()
    assert samples(shown)[name] == 0
    claimed.api.away = True
    claimed.clock.go(13 * 3600)

    def after_a_start() -> float:
        claimed.restart()
        show(claimed, shown)
        with pytest.raises(ApiAwayError):
            claimed.learn()
        claimed.reconcile()
        return samples(shown)[name]

    assert after_a_start() == 13 * 3600
    wall_s = claimed.clock.stamp.wall_s
    claimed.clock.stamp = Stamp(wall_s=wall_s + 3600, boot_id="two", boottime_s=5)
    assert after_a_start() == 14 * 3600
    claimed.clock.stamp = Stamp(wall_s=wall_s - 3600, boot_id="three", boottime_s=5)
    assert after_a_start() == math.inf
    assert claimed.refused(A) == "lease.expired"


def test_a_certificate_that_is_not_renewed_shows_its_age(host: Host, api: FakeApi, shown: Path) -> None:
    name = "vgpumgr_agent_certificate_age_seconds"
    api.gives_certificates = True
    host.learn()
    assert samples(shown)[name] == 0
    api.gives_certificates = False
    host.clock.go(1500)
    host.learn()
    assert samples(shown)[name] == 1500
    api.gives_certificates = True
    host.clock.go(1500)
    host.learn()
    assert samples(shown)[name] == 0


def test_a_host_that_cannot_be_looked_at_says_so_and_nothing_old(
    claimed: Host, shown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed.start(A)
    claimed.reconcile()
    claimed.kernel.loaded = False
    claimed.reconcile()
    found = samples(shown)
    assert found["vgpumgr_agent_kernel_up"] == 0
    assert not any(name.startswith(("vgpumgr_gpu_", "vgpumgr_group_", "vgpumgr_slice_")) for name in found)


def test_a_disk_that_takes_no_metrics_stops_nothing_and_is_named_once(
    claimed: Host, shown: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shown.mkdir()
    with caplog.at_level("WARNING"):
        for _ in range(3):
            claimed.reconcile()
    assert [f"no metrics: {shown}" in record.getMessage() for record in caplog.records] == [True]
    assert claimed.api.last().slices != []


def test_each_is_documented_and_each_documented_is_there(host: Host, api: FakeApi, shown: Path) -> None:
    api.gives_certificates = True
    host.learn()
    there = set(re.findall(r"^# TYPE (\w+) ", shown.read_text(), re.M))
    rows = [line for line in DOCUMENTED.read_text().splitlines() if line.startswith("| `vgpumgr_")]
    documented = {name for row in rows for name in re.findall(r"`(vgpumgr_\w+)`", row)}
    assert there == documented


@pytest.mark.parametrize("path", ["metrics.prom", "/var/lib/metrics.txt", "/"])
def test_a_file_that_no_collector_reads_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "agent.toml").write_text(f'api_url = "https://api"\nmetrics_file = "{path}"\n')
    with pytest.raises(ConfigError, match=r"metrics_file: .* in \.prom"):
        load(tmp_path / "agent.toml")
