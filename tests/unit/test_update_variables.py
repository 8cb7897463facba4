# SPDX-License-Identifier: Apache-2.0
"""The variables that the playbook `rolling_update` accepts. tests/lab/test_rolling_update.py tests what it does."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from vgpumgr.wire.operations import DEADLINE_S_MAX

ANSIBLE = Path(__file__).resolve().parents[2] / "ansible"
WRONG = {
    "vgpumgr_update_drain_s": ["1d", "", 0, -5, 1.5, True, "nan", DEADLINE_S_MAX + 1, 10**30],
    "vgpumgr_update_ready_s": ["soon", 0, 4, 86401],
}
RANGES = {"vgpumgr_update_drain_s": f"1 to {DEADLINE_S_MAX}", "vgpumgr_update_ready_s": "5 to 86400"}
ALLOWED = {"vgpumgr_update_drain_s": [1, "120", DEADLINE_S_MAX], "vgpumgr_update_ready_s": [5, "300", 86400]}


def update(place: Path, variables: list[dict[str, object]]) -> str:
    """Update hosts in parallel, one for each set of variables; return the error output.

    The API is unreachable, so the update fails at the latest when it asks the API.
    """
    collections = place / "collections/ansible_collections/vgpumgr"
    collections.mkdir(parents=True)
    (collections / "vgpumgr").symlink_to(ANSIBLE)
    common = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "vgpumgr_host_live": False,
        "vgpumgr_update_api": "localhost",
        "vgpumgr_update_serial": "100%",
        "vgpumgr_update_vgpumgr": ["/bin/false"],
    }
    hosts = {f"host-{number}": each for number, each in enumerate(variables)}
    (place / "inventory.json").write_text(json.dumps({"vgpumgr_hosts": {"hosts": hosts}}))
    playbook = shutil.which("ansible-playbook", path=Path(sys.executable).parent)
    assert playbook
    command = [playbook, "-i", "inventory.json", "-e", json.dumps(common), "vgpumgr.vgpumgr.rolling_update"]
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
        "HOME": str(place),
        "ANSIBLE_COLLECTIONS_PATH": str(place / "collections"),
        "ANSIBLE_GATHERING": "explicit",  # gathers no facts about a machine before the playbook asks the API
    }
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode, done.stdout
    return done.stdout + done.stderr


def test_how_long_to_wait_is_refused_by_its_name_and_range_before_anything_is_asked(tmp_path: Path) -> None:
    wrong = [(name, value) for name, values in WRONG.items() for value in values]
    said = update(tmp_path, [{name: value} for name, value in wrong])
    for number, (name, value) in enumerate(wrong):
        told = [line for line in said.splitlines() if f"[host-{number}]" in line]
        assert f"{name} is {value}; give a whole number of seconds from {RANGES[name]}" in "".join(told)
    assert "Read the host's state from the API" not in said


def test_how_long_to_wait_may_be_as_little_and_as_much_as_is_said(tmp_path: Path) -> None:
    allowed = [{name: value} for name, values in ALLOWED.items() for value in values]
    said = update(tmp_path, [{}, *allowed])
    assert "Read the host's state from the API" in said
    assert "give a whole number" not in said
