# SPDX-License-Identifier: Apache-2.0
"""What the node exporter finds of the agent: whole, escaped, documented, and never in the agent's way."""

import re
from pathlib import Path

import pytest
from vgpumgr_agent import metrics
from vgpumgr_agent.config import ConfigError, load
from vgpumgr_agent.reconcile import Orphans

from tests.agent.fakeapi import group
from tests.agent.host import A, B, Host
from tests.agent.test_meter import run
from tests.agent.test_reconcile import observed, seen_group

DOCUMENTED = Path(__file__).parents[2] / "docs" / "agent.md"
LINE = re.compile(r'^[a-z_]+(\{([a-z]+="([^"\\\n]|\\.)*",?)+\})? -?[0-9.e+-]+$')


@pytest.fixture
def shown(claimed: Host, tmp_path: Path) -> Path:
    path = tmp_path / "agent.prom"
    claimed.agent._config = claimed.agent._config.model_copy(update={"metrics_file": path})
    return path


def samples(path: Path) -> dict[str, float]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert all(LINE.match(line) for line in lines)
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


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


def test_problems_are_counted(claimed: Host, shown: Path) -> None:
    claimed.kernel.fail["set_tenant"] = [34] * 9
    claimed.api.set(groups=[group("blue", 150), group("green", 300)])
    claimed.learn()
    assert samples(shown)["vgpumgr_agent_problems"] == 1


def test_orphans_are_counted_and_names_escaped(claimed: Host, tmp_path: Path) -> None:
    found = observed(groups=(seen_group('a"b\\c'),))
    state = metrics.State(
        observed=found,
        orphans=Orphans(slices=frozenset({A, B}), groups=frozenset({("gpu", "x")})),
        problems=0,
        api_reachable=False,
        answered_s=None,
        told={("report", "delivered"): 3},
        at_s=1.5,
    )
    metrics.write(tmp_path / "x.prom", metrics.text(state))
    said = samples(tmp_path / "x.prom")
    assert (said['vgpumgr_agent_orphans{kind="slice"}'], said['vgpumgr_agent_orphans{kind="group"}']) == (2, 1)
    assert said['vgpumgr_group_weight{gpu="0000:00:10.0",tenant="a\\"b\\\\c"}'] == 300
    assert said['vgpumgr_agent_told_total{kind="report",result="delivered"}'] == 3
    assert "vgpumgr_agent_api_answer_age_seconds" not in said


def test_a_host_that_cannot_be_looked_at_says_so_and_nothing_old(
    claimed: Host, shown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed.reconcile()
    claimed.kernel.loaded = False
    claimed.reconcile()
    found = samples(shown)
    assert found["vgpumgr_agent_kernel_up"] == 0
    assert not any(name.startswith(("vgpumgr_gpu_", "vgpumgr_group_")) for name in found)


def test_a_disk_that_takes_no_metrics_stops_nothing_and_is_named_once(
    claimed: Host, shown: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shown.mkdir()
    with caplog.at_level("WARNING"):
        for _ in range(3):
            claimed.reconcile()
    assert [f"no metrics: {shown}" in record.getMessage() for record in caplog.records] == [True]
    assert claimed.api.last().slices != []


def test_each_is_documented_and_each_documented_is_there(claimed: Host, shown: Path) -> None:
    claimed.start(A)
    claimed.reconcile()
    there = set(re.findall(r"^# TYPE (\w+) ", shown.read_text(), re.M))
    rows = [line for line in DOCUMENTED.read_text().splitlines() if line.startswith("| `vgpumgr_")]
    documented = {name for row in rows for name in re.findall(r"`(vgpumgr_\w+)`", row)}
    assert there == documented


@pytest.mark.parametrize("path", ["metrics.prom", "/var/lib/metrics.txt", "/"])
def test_a_file_that_no_collector_reads_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "agent.toml").write_text(f'api_url = "https://api"\nmetrics_file = "{path}"\n')
    with pytest.raises(ConfigError, match=r"metrics_file: .* in \.prom"):
        load(tmp_path / "agent.toml")
