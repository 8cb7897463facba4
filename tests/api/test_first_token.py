# SPDX-License-Identifier: Apache-2.0
"""The role's script that stores the first operator's token, which is printed only once, after any interruption."""

import subprocess
from pathlib import Path

import pytest
import yaml

TASKS = Path(__file__).parents[2] / "ansible/roles/vgpumgr_api/tasks/database.yml"


class Machine:
    """The directories of a machine, below another root."""

    def __init__(self, root: Path) -> None:
        self.settings = root / "etc"
        self.deployed = root / "deployed"
        self.log = root / "log"
        tasks = yaml.safe_load(TASKS.read_text())
        [self.script] = [task["ansible.builtin.shell"] for task in tasks if "ansible.builtin.shell" in task]
        for path, place in (("/etc/vgpumgr", self.settings), ("/opt/vgpumgr/deployed", self.deployed)):
            place.mkdir()
            assert path in self.script
            self.script = self.script.replace(path, str(place))
        self.new = self.settings / ".operator-token"
        self.token = self.settings / "operator-token"

    def deploy(self, prints: str = "new", code: int = 0) -> int:
        init = f"runuser() {{ echo init >>{self.log}; printf %s '{prints}'; return {code}; }}\n"
        return subprocess.run(["/bin/sh", "-c", init + self.script], timeout=30).returncode

    def inits(self) -> int:
        return self.log.read_text().count("init") if self.log.exists() else 0

    def done(self) -> bool:
        return (self.deployed / "database").exists() and not self.new.exists()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("left", [None, ""])
def test_a_new_database_prints_it(machine: Machine, left: str | None) -> None:
    if left is not None:
        machine.new.write_text(left)
    assert machine.deploy() == 0
    assert machine.token.read_text() == "new"
    assert (machine.inits(), machine.done()) == (1, True)


@pytest.mark.parametrize("linked", [False, True])
def test_one_that_was_printed_is_kept(machine: Machine, linked: bool) -> None:
    machine.new.write_text("printed")
    if linked:
        machine.token.hardlink_to(machine.new)
    assert machine.deploy(prints="", code=1) == 0
    assert machine.token.read_text() == "printed"
    assert (machine.inits(), machine.done()) == (0, True)


def test_a_failure_leaves_nothing(machine: Machine) -> None:
    assert machine.deploy(prints="", code=1) == 1
    assert not machine.new.exists()
    assert not machine.token.exists()
    assert not machine.done()
    assert machine.deploy() == 0
    assert machine.token.read_text() == "new"


def test_a_failure_after_it_was_printed_does_not_lose_it(machine: Machine) -> None:
    assert machine.deploy(prints="printed", code=1) == 1
    assert machine.new.read_text() == "printed"
