# SPDX-License-Identifier: Apache-2.0
"""DKMS with the module's sources as a distribution would ship them, for kernels with and without mediated devices."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from labhost.debian import dkms_root
from labhost.deploy import Layer
from labhost.paths import Paths
from labhost.snapshot import Snapshot

CHECKOUT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mmdebstrap") is None, reason="needs root and mmdebstrap"
)
PATHS = Paths.find()
VERSION = (CHECKOUT / "kmod" / "VERSION").read_text().strip()
IN_ROOT = 'mount -t proc proc "$root/proc" && exec chroot "$root" sh -c "$1"'


class Machine:
    """A Debian system with DKMS, headers of two flavours, and our sources in /usr/src; changes stay in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._layer = Layer(PATHS, directory, lower=[dkms_root(PATHS)])
        sources = directory / "upper" / "usr" / "src" / f"vgpumgr-{VERSION}"
        Snapshot.take(CHECKOUT, ["kmod"]).write(directory / "source")
        shutil.copytree(directory / "source" / "kmod", sources)

    def run(self, command: str) -> str:
        """Run a shell command; return what it said."""
        log = self._directory / "command.log"
        self._layer.run(IN_ROOT, [command], log=log)
        return log.read_text()

    def kernel(self, *, cloud: bool) -> str:
        """The release of the installed flavour."""
        (found,) = [
            name.removeprefix("linux-headers-")
            for name in self.run("cd /usr/src; ls -d linux-headers-*-amd64").split()
            if ("-cloud-" in name) == cloud
        ]
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """On the disk of the cache: the upper directory of an overlay may not lie on every file system."""
    directory = PATHS.cache / f"dkms-{os.getpid()}-{tmp_path.name}"
    directory.mkdir(parents=True)
    try:
        yield Machine(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def test_dkms_builds_for_a_kernel_with_mediated_devices_and_passes_over_one_without(machine: Machine) -> None:
    machine.run(f"dkms add -m vgpumgr -v {VERSION}")

    cloud = machine.kernel(cloud=True)
    said = machine.run(f"dkms autoinstall -k {cloud}")
    assert f"vgpumgr: kernel {cloud} has no mediated devices (CONFIG_VFIO_MDEV)" in said
    assert "skipped" in said
    assert "installed" not in machine.run("dkms status -m vgpumgr")

    kernel = machine.kernel(cloud=False)
    assert "no mediated devices" not in machine.run(f"dkms autoinstall -k {kernel}")
    assert f"vgpumgr/{VERSION}, {kernel}, x86_64: installed" in machine.run("dkms status -m vgpumgr")
    told = dict(line.split(":", 1) for line in machine.run(f"modinfo -k {kernel} vgpumgr").splitlines() if ":" in line)
    told = {field: value.strip() for field, value in told.items()}
    assert told["license"] == "GPL"
    assert told["version"] == VERSION
    assert told["depends"] == "mdev,vfio"
    assert told["softdep"] == "pre: vfio_iommu_type1"
    assert told["vermagic"].startswith(f"{kernel} ")
    assert told["signer"] == "DKMS module signing key"

    machine.run(f"dkms remove vgpumgr/{VERSION} --all")
    assert "vgpumgr" not in machine.run("dkms status")
    assert "vgpumgr" not in machine.run(f"find /usr/lib/modules/{kernel} -name 'vgpumgr*'")
