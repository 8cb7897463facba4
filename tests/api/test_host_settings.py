# SPDX-License-Identifier: Apache-2.0
"""The host's role refuses settings with which the host would say its token aloud, or not be taken for online."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from vgpumgr_agent.config import Config, load

ROOT = Path(__file__).parents[2]
ROLE = ROOT / "ansible/roles/vgpumgr_host"
CHECK = ROLE / "tasks/check.yml"


def check(tmp_path: Path, **settings: object) -> str:
    """Returns why the settings were refused, "" if they were not."""
    given = {"vgpumgr_host_gpus": [], "vgpumgr_host_live": False, "vgpumgr_host_report_interval_s": 10}
    given |= {"vgpumgr_host_counters_interval_s": 60, "vgpumgr_host_metrics_directory": ""}
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars": given | {"vgpumgr_host_api_url": "https://api:8470"} | settings,
        "tasks": [{"ansible.builtin.import_tasks": str(CHECK)}],
    }
    playbook = tmp_path / "play.json"
    playbook.write_text(json.dumps([play]))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "--inventory=localhost,", "--connection=local"]
    done = subprocess.run([*command, str(playbook)], capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 2), done.stdout + done.stderr
    return done.stdout if done.returncode else ""


@pytest.mark.parametrize("url", ["http://10.0.0.1:8470", "http://127.0.0.1.example", "http://api"])
def test_tokens_travel_encrypted(tmp_path: Path, url: str) -> None:
    assert f"vgpumgr_host_api_url is {url}" in check(tmp_path, vgpumgr_host_api_url=url)


@pytest.mark.parametrize("interval_s", [0.9, 31])
def test_reports_come_often_enough_and_not_too_often(tmp_path: Path, interval_s: float) -> None:
    assert f"vgpumgr_host_report_interval_s is {interval_s}" in check(
        tmp_path, vgpumgr_host_report_interval_s=interval_s
    )


@pytest.mark.parametrize("interval_s", [0.5, 601])
def test_counters_are_reported_often_enough(tmp_path: Path, interval_s: float) -> None:
    assert f"vgpumgr_host_counters_interval_s is {interval_s}" in check(
        tmp_path, vgpumgr_host_counters_interval_s=interval_s
    )


def test_metrics_are_shown_in_a_directory_of_the_host(tmp_path: Path) -> None:
    assert "vgpumgr_host_metrics_directory is here" in check(tmp_path, vgpumgr_host_metrics_directory="here")


def written(tmp_path: Path, **settings: object) -> Config:
    """What the agent reads of what the role writes."""
    task = {"src": str(ROLE / "templates/agent.toml.j2"), "dest": str(tmp_path / "agent.toml")}
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars": {"ansible_python_interpreter": sys.executable},
        "vars_files": [str(ROLE / "defaults/main.yml")],
        "tasks": [{"ansible.builtin.template": task, "vars": {"vgpumgr_host_api_url": "https://api"} | settings}],
    }
    (tmp_path / "play.json").write_text(json.dumps([play]))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "--inventory=localhost,", "--connection=local"]
    done = subprocess.run([*command, str(tmp_path / "play.json")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return load(tmp_path / "agent.toml")


def test_the_agent_reads_what_the_role_writes(tmp_path: Path) -> None:
    found = written(tmp_path)
    assert (found.report_interval_s, found.counters_interval_s, found.metrics_file) == (10, 60, None)
    found = written(
        tmp_path,
        vgpumgr_host_report_interval_s=3,
        vgpumgr_host_counters_interval_s=30,
        vgpumgr_host_metrics_directory="/var/lib/prometheus/node-exporter",
    )
    assert (found.report_interval_s, found.counters_interval_s) == (3, 30)
    unit = (ROOT / "agent/systemd/vgpumgr-agent.service").read_text()
    directory = re.search(r"^RuntimeDirectory=(\S+)$", unit, re.M)
    assert directory is not None
    assert found.metrics_file is not None
    assert found.metrics_file.parent == Path("/run") / directory[1]
    tasks = (ROLE / "tasks/agent.yml").read_text()
    assert f"src: {found.metrics_file}" in tasks


@pytest.mark.parametrize(
    ("url", "interval_s"), [("", 1), ("http://127.0.0.1:8470", 30), ("http://[::1]:8470", 1.5), ("https://api", 10)]
)
def test_others_are_let(tmp_path: Path, url: str, interval_s: float) -> None:
    assert check(tmp_path, vgpumgr_host_api_url=url, vgpumgr_host_report_interval_s=interval_s) == ""
