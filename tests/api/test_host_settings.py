# SPDX-License-Identifier: Apache-2.0
"""The host's role refuses settings with which the host would say its token aloud, or not be taken for online."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / "ansible/roles/vgpumgr_host/tasks/check.yml"


def check(tmp_path: Path, **settings: object) -> str:
    """Returns why the settings were refused, "" if they were not."""
    given = {"vgpumgr_host_gpus": [], "vgpumgr_host_live": False, "vgpumgr_host_report_interval_s": 10}
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


@pytest.mark.parametrize(
    ("url", "interval_s"), [("", 1), ("http://127.0.0.1:8470", 30), ("http://[::1]:8470", 1.5), ("https://api", 10)]
)
def test_others_are_let(tmp_path: Path, url: str, interval_s: float) -> None:
    assert check(tmp_path, vgpumgr_host_api_url=url, vgpumgr_host_report_interval_s=interval_s) == ""
