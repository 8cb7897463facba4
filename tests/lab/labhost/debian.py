# SPDX-License-Identifier: Apache-2.0
"""Debian root file systems of the lab host and of a QEMU."""

from pathlib import Path

from labhost.cache import Cache, digest
from labhost.mending import RECIPE, mend
from labhost.paths import Paths
from labhost.progress import say, step
from labhost.rootfs import MKFS, ext4, logged, mmdebstrap
from labhost.toolchain import DEFAULT_KERNEL, KERNELS, toolchain

# 60-mdevctl.rules runs /usr/sbin/mdevctl, but Debian ships it in /usr/bin, so that autostart fails silently.
_PREPARE_HOST = """set -eu
root=$1
[ -e "$root/usr/sbin/mdevctl" ] || ln -s ../bin/mdevctl "$root/usr/sbin/mdevctl"
echo 5d1e5f1f4b0a4f1c9f3a6b0f2c7d8e90 > "$root/etc/machine-id"
echo lab > "$root/etc/hostname"
printf '127.0.0.1 localhost lab\\n::1 localhost lab\\n' > "$root/etc/hosts"
for unit in serial-getty@ttyS0.service getty@tty1.service ssh.service ssh.socket \\
    apt-daily.timer apt-daily-upgrade.timer systemd-networkd-wait-online.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
mkdir -p "$root/checkout" "$root/lab"
# libvirt asks every QEMU it finds what it can do, which takes seconds when emulated
rm -f "$root/usr/bin/qemu-system-i386"
"""


def host_root(paths: Paths) -> Path:
    """Return the directory of the root file system on which lab hosts are deployed: Debian, with its kernel's modules
    and headers, and without our software. Nobody may write to it.
    """
    lines = paths.host_packages.read_text(encoding="utf-8").splitlines()
    packages = sorted(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    chain = toolchain(paths, KERNELS[DEFAULT_KERNEL])

    def build(directory: Path) -> None:
        with step("lab host root file system"):
            root = directory / "root"
            mmdebstrap(paths, "host", root, "trixie", packages, hook=_PREPARE_HOST)
            # the toolchain's kernel, not a package: the mirror may have another kernel by now
            for place in ("usr/src", "usr/lib/modules", *_glob(chain.root, "usr/lib/linux-kbuild-*")):
                logged(paths, "host-kernel", ["cp", "-a", "-T", chain.root / place, root / place])

    key = digest([*packages, _PREPARE_HOST, chain.directory.name])
    return Cache(paths.cache).entry("host-root", key, build) / "root"


def bare_image(paths: Paths) -> Path:
    """Return host_root() as an ext4 image: a lab host without our software."""
    root = host_root(paths)

    def build(directory: Path) -> None:
        with step("image of a lab host without our software"):
            ext4(paths, "bare", root, directory / "bare.ext4", spare_mib=1024)

    return Cache(paths.cache).entry("host-bare", digest([root.parent.name, *MKFS]), build) / "bare.ext4"


def _glob(root: Path, pattern: str) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.glob(pattern))


def dkms_root(paths: Paths) -> Path:
    """Return a root file system with DKMS and headers of two flavours; the cloud one has no mediated devices."""
    packages = ["dkms", "openssl", "linux-headers-amd64", "linux-headers-cloud-amd64"]

    def build(directory: Path) -> None:
        with step("root file system with DKMS"):
            mmdebstrap(paths, "dkms", directory / "root", "trixie", packages)

    return Cache(paths.cache).entry("dkms-root", digest(packages), build) / "root"


def qemu_root(paths: Paths) -> Path:
    """Return a directory with a new, patched QEMU and all it needs, libc included. None of its packages is
    configured."""
    suite, packages = "trixie-backports", ["qemu-system-x86"]

    def build(directory: Path) -> None:
        with step("private QEMU"):
            mmdebstrap(paths, "qemu", directory / "root", suite, packages, variant="extract")
            for defect in mend(directory / "root/usr/bin/qemu-system-x86_64"):
                say(f"not found in this QEMU, so not mended: {defect}")

    return Cache(paths.cache).entry("qemu", digest([suite, *packages, RECIPE]), build) / "root"
