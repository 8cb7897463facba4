# SPDX-License-Identifier: Apache-2.0
"""The ansible roles as who deploys hosts meets them. Image builds prove a first run; here is the rest."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from labhost.debian import host_root  # noqa: E402
from labhost.deploy import SOURCES, Layer, host_layers, product_wheel  # noqa: E402
from labhost.errors import BuildError  # noqa: E402
from labhost.paths import Paths  # noqa: E402
from labhost.snapshot import Snapshot  # noqa: E402

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mmdebstrap") is None, reason="needs root and mmdebstrap"
)
PATHS = Paths.find()


class Host:
    """A copy of the lab host to run the playbook on; `bare`: as Debian leaves it."""

    def __init__(self, directory: Path, *, bare: bool = False) -> None:
        self.changes = directory / "upper"
        lower = [host_root(PATHS)] if bare else host_layers(PATHS)
        self._layer = Layer(PATHS, directory, lower=lower)

    def play(self, *arguments: str) -> str:
        return self._layer.play(Snapshot.take(CHECKOUT, SOURCES), wheel=product_wheel(PATHS), arguments=arguments)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """On the disk of the cache: the upper directory of an overlay may not lie on every file system."""
    directory = PATHS.cache / f"role-{os.getpid()}-{tmp_path.name}"
    directory.mkdir(parents=True)
    yield directory
    shutil.rmtree(directory)


def changed(output: str) -> int:
    match = re.search(r"changed=(\d+) .*failed=0", output)
    assert match, output
    return int(match[1])


def test_a_second_run_changes_nothing(place: Path) -> None:
    output = Host(place).play()
    assert changed(output) == 0, re.findall(r"TASK \[.*\n(?:changed.*\n)+", output)


def test_a_change_of_settings_changes_what_it_names_and_nothing_else(place: Path) -> None:
    host = Host(place)
    output = host.play("-e", '{"vgpumgr_host_gpus": ["0000:00:10.0", "0000:3b:00.0"]}')
    assert changed(output) == 1
    rules = (host.changes / "etc/udev/rules.d/60-vgpumgr.rules").read_text()
    assert [line.split('"')[5] for line in rules.splitlines() if "driver_override" in line] == [
        "0000:00:10.0",
        "0000:3b:00.0",
    ]


def test_check_mode_on_a_bare_host_says_what_would_change_and_changes_nothing(place: Path) -> None:
    host = Host(place, bare=True)
    assert changed(host.play("--check")) > 10
    files = [path.relative_to(host.changes) for path in host.changes.rglob("*") if path.is_file()]
    assert [file for file in files if not file.is_relative_to("var/cache/apt")] == []


def test_a_gpu_that_is_no_pci_address_is_refused(place: Path) -> None:
    with pytest.raises(BuildError, match=r"nvidia0 is no PCI address; `lspci -D`"):
        Host(place).play("--tags", "check", "-e", '{"vgpumgr_host_gpus": ["nvidia0"]}')


def test_a_kernel_without_mediated_devices_is_refused(place: Path) -> None:
    host = Host(place)
    build = host.changes / "usr/lib/modules/9.9-cloud/build"
    build.mkdir(parents=True)
    (build / ".config").write_text("CONFIG_VFIO=m\n# CONFIG_VFIO_MDEV is not set\n")
    with pytest.raises(BuildError, match=r"kernel 9\.9-cloud has no CONFIG_VFIO_MDEV"):
        host.play("--tags", "module", "-e", "vgpumgr_host_kernel=9.9-cloud")


def test_the_api_beyond_loopback_without_tls_is_refused(place: Path) -> None:
    with pytest.raises(BuildError, match="beyond loopback the API speaks TLS only"):
        Host(place).play("-e", "vgpumgr_api_listen_host=0.0.0.0")


def test_the_image_names_no_package_index_of_this_machine() -> None:
    deployed = host_layers(PATHS)[:-1]
    assert [layer for layer in deployed if (layer / "opt/vgpumgr/bin/vgpumgr-agent").exists()]
    for layer in deployed:
        assert not list(layer.rglob("pip.conf"))
        assert not list(layer.rglob("*.whl"))


def test_the_collection_passes_ansible_lint(tmp_path: Path) -> None:
    collection = tmp_path / "ansible_collections" / "vgpumgr"
    collection.mkdir(parents=True)
    (collection / "vgpumgr").symlink_to(CHECKOUT / "ansible")
    tools = CHECKOUT / "build" / "venv" / "bin"
    done = subprocess.run(
        [tools / "ansible-lint", "--nocolor", "--offline", "--profile", "production"],
        cwd=CHECKOUT / "ansible",
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(tmp_path), "PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_systemd_brings_the_deployed_host_up() -> None:
    lab = [sys.executable, str(HERE / "lab"), "run", "--systemd", "--timeout", "400", "--", "tests/lab/systemd-boot"]
    done = subprocess.run(lab, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
