# SPDX-License-Identifier: Apache-2.0
"""DKMS builds host's and guest's module from the sources as a distribution would ship them, for kernels with and
without
mediated devices.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from labhost.debian import dkms_root
from labhost.deploy import Layer
from labhost.paths import Paths
from labhost.snapshot import Snapshot
from labhost.toolchain import KERNELS, toolchain

CHECKOUT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mmdebstrap") is None, reason="needs root and mmdebstrap"
)
PATHS = Paths.find()
VERSION = (CHECKOUT / "kmod" / "VERSION").read_text().strip()
DEPLOYING = (CHECKOUT / "docs" / "deploy.md").read_text()
IN_ROOT = 'mount -t proc proc "$root/proc" && exec chroot "$root" sh -c "$1"'


class Machine:
    """A Debian system with DKMS, headers of several kernels, and our sources in /checkout; changes stay in
    `directory`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # the newest kernel's headers come from the toolchain: a package of that name would be another kernel next month
        lower = [dkms_root(PATHS), toolchain(PATHS, KERNELS["7.x"]).root]
        self._layer = Layer(PATHS, directory, lower=lower)
        self.checkout = directory / "upper" / "checkout"
        Snapshot.take(CHECKOUT, ["kmod"]).write(self.checkout)

    def run(self, command: str) -> str:
        """Run a shell command; return its output."""
        log = self._directory / "command.log"
        self._layer.run(IN_ROOT, [command], log=log)
        return log.read_text()

    def place_sources(self, package: str) -> None:
        """Follow docs/deploy.md up to `dkms add`."""
        (recipe,) = re.findall(rf"^version=.*\n(?:.+\n)*dkms add {package}/\$version\n", DEPLOYING, re.M)
        self.run(f"set -e; cd /checkout; {recipe}")

    def kernel(self, name: str) -> str:
        """The release of the kernel: `6.12`, `cloud` or `7.x`."""
        releases = self.run("cd /usr/src; ls -d linux-headers-*-amd64").replace("linux-headers-", "").split()
        pattern = {"6.12": r"6\.12\.(?!.*cloud)", "cloud": r".*-cloud-", "7.x": r"7\."}[name]
        (found,) = [release for release in releases if re.match(pattern, release)]
        return found

    def modinfo(self, kernel: str, module: str) -> dict[str, str]:
        """The module's fields; the last value of each name."""
        lines = self.run(f"modinfo -k {kernel} {module}").splitlines()
        return {field: value.strip() for field, _, value in (line.partition(":") for line in lines)}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """On the disk of the cache: not every file system can hold the upper directory of an overlay."""
    directory = PATHS.cache / f"dkms-{os.getpid()}-{tmp_path.name}"
    directory.mkdir(parents=True)
    try:
        yield Machine(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def test_dkms_builds_for_a_kernel_with_mediated_devices_and_passes_over_one_without(machine: Machine) -> None:
    machine.place_sources("vgpumgr")
    assert "guest" not in machine.run(f"ls /usr/src/vgpumgr-{VERSION}"), "that is the other package"

    cloud = machine.kernel("cloud")
    said = machine.run(f"dkms autoinstall -k {cloud}")
    assert f"vgpumgr: kernel {cloud} has no mediated devices (CONFIG_VFIO_MDEV)" in said
    assert "skipped" in said
    assert "installed" not in machine.run("dkms status -m vgpumgr")

    kernels = [machine.kernel(name) for name in ("6.12", "7.x")]
    for kernel in kernels:
        assert "no mediated devices" not in machine.run(f"dkms autoinstall -k {kernel}")
        assert f"vgpumgr/{VERSION}, {kernel}, x86_64: installed" in machine.run("dkms status -m vgpumgr")
        told = machine.modinfo(kernel, "vgpumgr")
        assert told["license"] == "GPL"
        assert told["version"] == VERSION
        assert told["depends"] == "mdev,vfio"
        assert told["softdep"] == "pre: vfio_iommu_type1"
        assert told["vermagic"].startswith(f"{kernel} ")
        assert told["signer"] == "DKMS module signing key"

    machine.run(f"dkms remove vgpumgr/{VERSION} --all")
    assert "vgpumgr" not in machine.run("dkms status")
    for kernel in kernels:
        assert "vgpumgr" not in machine.run(f"find /usr/lib/modules/{kernel} -name 'vgpumgr*'")


def test_dkms_builds_the_guest_driver_for_every_kernel(machine: Machine) -> None:
    """It also builds for kernels without mediated devices, which a guest does not need."""
    machine.place_sources("vgpumgr-guest")

    kernels = [machine.kernel(name) for name in ("cloud", "6.12", "7.x")]
    for kernel in kernels:
        machine.run(f"dkms autoinstall -k {kernel}")
        assert f"vgpumgr-guest/{VERSION}, {kernel}, x86_64: installed" in machine.run("dkms status -m vgpumgr-guest")
        told = machine.modinfo(kernel, "vgpu_guest")
        assert told["version"] == VERSION
        assert told["depends"] == ""
        assert told["vermagic"].startswith(f"{kernel} ")

    machine.run(f"dkms remove vgpumgr-guest/{VERSION} --all")
    for kernel in kernels:
        assert "vgpu_guest" not in machine.run(f"find /usr/lib/modules/{kernel} -name 'vgpu_guest*'")


def test_the_package_for_guests_builds_its_driver_and_goes_without_a_trace(machine: Machine, tmp_path: Path) -> None:
    recipe = ["make", "-s", "-C", CHECKOUT / "kmod/guest/package", "deb", f"BUILD={tmp_path}", f"DIST={tmp_path}"]
    subprocess.run(recipe, check=True, timeout=600)
    (package,) = tmp_path.glob("*.deb")
    shutil.copy(package, machine.checkout)
    traces = (
        "find /usr/src/vgpumgr* /usr/lib/vgpumgr /etc/OpenCL /usr/bin/vgpu-guest /usr/lib/modules -name '*vgpu*' || :"
    )
    assert ".ko" not in machine.run(traces)

    machine.run(f"dpkg --install /checkout/{package.name}")
    assert machine.run("dkms status -m vgpumgr-guest").count(": installed") == 3
    for name in ("cloud", "6.12", "7.x"):
        assert machine.modinfo(machine.kernel(name), "vgpu_guest")["version"] == VERSION
    assert "icd       ok" in machine.run("vgpu-guest status || :")
    machine.run(f"dpkg --install /checkout/{package.name}")
    assert machine.run("dkms status -m vgpumgr-guest").count(": installed") == 3

    machine.run("dpkg --purge vgpu-guest")
    assert machine.run("dkms status") == ""
    assert [line for line in machine.run(traces).splitlines() if "No such file" not in line] == []


def test_a_defect_in_the_hosts_module_does_not_keep_dkms_from_building_the_guests(machine: Machine) -> None:
    with (machine.checkout / "kmod" / "main.c").open("a") as source:
        source.write("#error a defect\n")
    machine.place_sources("vgpumgr-guest")
    machine.run(f"dkms build vgpumgr-guest/{VERSION} -k {machine.kernel('6.12')}")


def test_make_clean_leaves_nothing_of_what_make_built(machine: Machine) -> None:
    kernel = f"KDIR=/usr/src/linux-headers-{machine.kernel('6.12')}"
    there = "cd /checkout/kmod && find . | sort"
    before = machine.run(there)
    machine.run(f"make -C /checkout/kmod {kernel}")
    assert "./guest/vgpu_guest.ko" in machine.run(there)
    machine.run(f"make -C /checkout/kmod {kernel} clean")
    assert machine.run(there) == before
