# SPDX-License-Identifier: Apache-2.0
"""`tests/setup` on a machine that has all it needs but promtool, beside an apt that does as a test says."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[1] / "setup"
MACHINE_DIRECTORIES = (Path("/usr/bin"), Path("/bin"))
# Has whatever package is asked for.
DPKG_QUERY = """#!/bin/sh
sed 's/^/installed /' "$(dirname "$0")/../checkout/build/setup/packages"
"""
# Its virtual environment is itself.
PYTHON = """#!/bin/sh
case "$1 $2" in
    "-c "*print*) echo 3.11.2 ;;
    "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
esac
"""
APT_GET = """#!/bin/sh
echo "$*" >>"$(dirname "$0")/../asked"
"""
PACKAGE = """
for last; do :; done
case "$*" in *download*) : >prometheus_1_amd64.deb ;; esac
"""
DPKG_DEB = """#!/bin/sh
mkdir -p "$3/usr/bin" && printf '#!/bin/sh\\n' >"$3/usr/bin/promtool" && chmod +x "$3/usr/bin/promtool"
"""
SUDO = """#!/bin/sh
exec "$@"
"""


@dataclass
class Machine:
    """A checkout with the set-up alone, and the commands that it finds."""

    place: Path

    def __post_init__(self) -> None:
        self.checkout = self.place / "checkout"
        self.commands = self.place / "commands"
        self.commands.mkdir()
        (self.checkout / "tests").mkdir(parents=True)
        (self.checkout / "kmod").mkdir()
        for name in ("requirements.lock", "pyproject.toml", "setup.py", "kmod/VERSION"):
            (self.checkout / name).touch()
        shutil.copy(SETUP, self.checkout / "tests/setup")
        for command in sorted(path for directory in MACHINE_DIRECTORIES for path in directory.iterdir()):
            link = self.commands / command.name
            if command.name != "promtool" and not link.is_symlink():
                link.symlink_to(command)
        fakes = {"dpkg-query": DPKG_QUERY, "dpkg-deb": DPKG_DEB, "python": PYTHON, "sudo": SUDO}
        for name, text in fakes.items():
            self.has(name, text)
        self.apt(works=False)

    def has(self, command: str, text: str) -> None:
        path = self.commands / command
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def apt(self, *, works: bool) -> None:
        self.has("apt-get", APT_GET + (PACKAGE if works else "exit 100\n"))

    def sets_up(self) -> str:
        """Set up, and return what that said."""
        done = subprocess.run(
            [self.checkout / "tests/setup"],
            env={"PATH": str(self.commands), "PYTHON": str(self.commands / "python")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def asked(self) -> list[str]:
        """What was asked of apt since the last time."""
        path = self.place / "asked"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_promtool_that_could_not_be_had_is_asked_for_once(machine: Machine) -> None:
    said = machine.sets_up()
    assert "promtool could not be had" in said
    assert "rm build/setup/no-promtool" in said
    assert "-q download prometheus" in machine.asked()
    assert machine.sets_up() == ""
    assert machine.asked() == []


def test_promtool_is_asked_for_again_when_that_is_wanted(machine: Machine) -> None:
    machine.sets_up()
    (machine.checkout / "build/setup/no-promtool").unlink()
    machine.apt(works=True)
    assert "promtool, of Debian's package prometheus ... ok" in machine.sets_up()
    assert (machine.checkout / "build/promtool").exists()
    machine.asked()
    assert machine.sets_up() == ""
    assert machine.asked() == []


def test_promtool_is_not_asked_for_where_the_machine_has_it(machine: Machine) -> None:
    machine.has("promtool", SUDO)
    assert "promtool" not in machine.sets_up()
    assert machine.asked() == []
