# SPDX-License-Identifier: Apache-2.0
"""Two roles on one machine share the wheel. When it changes, the services of both restart, in separate plays."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

TASKS = Path(__file__).parents[2] / "ansible/roles/vgpumgr_base/tasks/software.yml"


class Machine:
    """A machine below another root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for directory in ("opt/bin", "opt/deployed", "bin"):
            (root / directory).mkdir(parents=True)
        pip = root / "opt/bin/pip"
        pip.write_text(f"#!/bin/sh\necho installed >>{root}/log\n")
        pip.chmod(0o755)
        tasks = TASKS.read_text().replace("/opt/vgpumgr", f"{root}/opt").replace("/usr/local/bin", f"{root}/bin")
        (root / "software.yml").write_text(tasks)
        (root / "play.json").write_text(json.dumps([self._play("api"), self._play("host")]))

    def _play(self, role: str) -> dict[str, object]:
        return {
            "hosts": "localhost",
            "gather_facts": False,
            "vars": {
                "ansible_python_interpreter": sys.executable,
                "vgpumgr_base_name": role,
                "vgpumgr_base_wheel": str(self.root / "vgpumgr.whl"),
            },
            "tasks": [{"ansible.builtin.import_tasks": "software.yml"}],
            "handlers": [
                {
                    "name": "Restart",
                    "ansible.builtin.shell": f"echo {role} >>{self.root}/log",
                    "listen": "Software changed",
                }
            ],
        }

    def has(self, wheel: str) -> None:
        """Leaves the machine as both roles do after they installed this wheel."""
        digest = hashlib.sha256(wheel.encode()).hexdigest()
        for name in ("wheel", "api.wheel", "host.wheel"):
            (self.root / f"opt/deployed/{name}.sha256").write_text(f"{digest}\n")

    def deploy(self, wheel: str) -> list[str]:
        """Returns the actions of the role."""
        (self.root / "vgpumgr.whl").write_text(wheel)
        log = self.root / "log"
        log.write_text("")
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "--inventory=localhost,"]
        command += ["--connection=local", str(self.root / "play.json")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return log.read_text().split()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("before", ["another wheel", pytest.param("", marks=pytest.mark.long)])
def test_a_new_wheel_is_installed_once_and_restarts_the_services_of_both_roles(machine: Machine, before: str) -> None:
    if before:
        machine.has(before)
    assert machine.deploy("a wheel") == ["installed", "api", "host"]
    assert machine.deploy("a wheel") == []
