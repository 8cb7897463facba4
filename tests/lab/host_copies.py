# SPDX-License-Identifier: Apache-2.0
"""Copies of the lab host for tests to run playbooks on."""

import os
import re
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from labhost.deploy import SOURCES, Layer, host_layers, product_wheel
from labhost.paths import Paths
from labhost.snapshot import Snapshot

from tests.api.http.tls import make_certificate

PATHS = Paths.find()
INVENTORY = Path(__file__).resolve().parent / "deploy" / "inventory.yml"
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mmdebstrap") is None, reason="needs root and mmdebstrap"
)
# It has its own network, because an API may listen on this machine. No process outlives the command.
IN_ROOT = """mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/run"
exec unshare --net --pid --fork --kill-child --mount-proc="$root/proc" chroot "$root" sh -c "$1"
"""


class Host:
    """A copy of the lab host to run playbooks on. `lower`: its existing layers, uppermost first."""

    def __init__(self, directory: Path, lower: Sequence[Path] = ()) -> None:
        self.changes = directory / "upper"
        self._directory = directory
        self.layer = Layer(PATHS, directory, lower=lower or host_layers(PATHS))

    def play(self, *arguments: str, paths: Paths = PATHS) -> str:
        """Deploy the checkout of `paths`."""
        sources, wheel = release(paths)
        return self.layer.play(sources, wheel=wheel, arguments=arguments)

    def run(self, command: str) -> str:
        """Run a shell command on it; return its output."""
        log = self._directory / "command.log"
        self.layer.run(IN_ROOT, [command], log=log)
        return log.read_text()

    def give_certificate(self) -> None:
        """Place a certificate for the API, as docs/deploy.md tells the operator to."""
        place = self.changes / "etc/vgpumgr"
        place.mkdir(parents=True, exist_ok=True)
        make_certificate(place, name="api.pem", key="api.key")
        self.run("chgrp vgpumgr-api /etc/vgpumgr/api.key && chmod 640 /etc/vgpumgr/api.key")


@cache
def release(paths: Paths) -> tuple[Snapshot, Path]:
    """The checkout at the moment of the first use: somebody may be editing it."""
    return Snapshot.take(paths.checkout, SOURCES), product_wheel(paths)


def changed(output: str) -> int:
    match = re.search(r"changed=(\d+) .*failed=0", output)
    assert match, output
    return int(match[1])


def say_who_reboots(host: Host) -> None:
    """Make a reboot fail with a message: this copy cannot reboot, and ansible cannot wait for that."""
    program = host.changes / "usr/sbin/shutdown"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho the host reboots >&2\nexit 1\n")
    program.chmod(0o755)


def run_vm(host: Host, name: str | None) -> None:
    """Make libvirt's own driver for tests show one VM, or none, in place of QEMU's driver."""
    place = host.changes / "etc/libvirt"
    place.mkdir(parents=True, exist_ok=True)
    (place / "libvirt.conf").write_text('uri_default = "test:///etc/libvirt/node.xml"\n')
    domain = f"<domain type='test'><name>{name}</name><memory>1024</memory><os><type>hvm</type></os></domain>"
    (place / "node.xml").write_text(f"<node>{domain if name else ''}</node>\n")


def unfit_kernel(host: Host) -> list[str]:
    """Arguments with which the role fails once the host is empty."""
    build = host.changes / "usr/lib/modules/9.9-cloud/build"
    build.mkdir(parents=True)
    (build / ".config").write_text("CONFIG_VFIO=m\n# CONFIG_VFIO_MDEV is not set\n")
    return ["-e", "vgpumgr_host_kernel=9.9-cloud"]
