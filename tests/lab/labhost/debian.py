# SPDX-License-Identifier: Apache-2.0
"""Debian root file systems, made by mmdebstrap: toolchains with their kernels, the lab host, a QEMU."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labhost.cache import Cache, digest
from labhost.command import build_step
from labhost.errors import LabError
from labhost.mirror import debian_mirror
from labhost.paths import Paths
from labhost.progress import step

_BUILD_LIMIT_S = 1800.0
_SPARE_INODES = 16384
_MKFS = ("mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-m", "0", "-E", "lazy_itable_init=0")

# The kernel's files are unpacked, not installed: installing would build an initial RAM disk nobody uses.
# They match the headers because they come from the same run against the same mirror.
_UNPACK_KERNEL = """set -eu
root=$1
release=$(basename "$root"/usr/src/linux-headers-*-amd64)
release=${release#linux-headers-}
download=$(mktemp -d)
trap 'rm -rf "$download"' EXIT
cd "$download"
APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get download -o APT::Sandbox::User=root "linux-image-$release"
dpkg-deb -x ./*.deb unpacked
mkdir -p "$root/usr/lib/modules/$release"
cp -a unpacked/boot/. "$root/boot/"
for modules in unpacked/lib/modules unpacked/usr/lib/modules; do
    [ ! -d "$modules" ] || cp -a "$modules/$release/." "$root/usr/lib/modules/$release/"
done
chroot "$root" depmod "$release"
printf '%s' "$release" > "$root/kernel-release"
"""

# 60-mdevctl.rules runs /usr/sbin/mdevctl, which Debian ships in /usr/bin, so that autostart fails silently.
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


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel of a Debian release, with the compiler its headers want."""

    name: str
    suite: str
    compiler: str


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel(name="6.12", suite="trixie", compiler="gcc-14"),
        Kernel(name="6.1", suite="bookworm", compiler="gcc-12"),
    )
}
DEFAULT_KERNEL = "6.12"


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """A root file system that builds for one kernel, and that kernel's own files."""

    kernel: Kernel
    directory: Path

    @property
    def root(self) -> Path:
        """Where to chroot to."""
        return self.directory / "root"

    @property
    def release(self) -> str:
        """What `uname -r` says under this kernel."""
        return (self.root / "kernel-release").read_text(encoding="ascii")

    @property
    def modules(self) -> Path:
        """The kernel's modules, compressed as Debian ships them."""
        return self.root / "usr" / "lib" / "modules" / self.release

    @property
    def vmlinuz(self) -> Path:
        """The bootable kernel."""
        return self.root / "boot" / f"vmlinuz-{self.release}"

    @property
    def modules_image(self) -> Path:
        """A file system to mount on /usr/lib/modules."""
        return self.directory / "modules.ext4"

    @property
    def headers(self) -> str:
        """The value of KDIR inside the root."""
        return f"/usr/src/linux-headers-{self.release}"


def toolchain(paths: Paths, kernel: Kernel) -> Toolchain:
    """Return the toolchain for a kernel, built if it is not cached."""
    packages = [
        "busybox-static", "gcc", kernel.compiler, "kmod", "libc6-dev", "linux-headers-amd64", "make", "perl", "sparse",
    ]  # fmt: skip
    name = f"toolchain-{kernel.name}"

    def build(directory: Path) -> None:
        with step(f"{kernel.suite} toolchain with kernel {kernel.name}"):
            root = directory / "root"
            _mmdebstrap(paths, name, root, kernel.suite, packages, hook=_UNPACK_KERNEL)
            _ext4(paths, name, root / "usr" / "lib" / "modules", directory / "modules.ext4", spare_mib=32)

    key = digest([*packages, kernel.suite, _UNPACK_KERNEL, *_MKFS])
    return Toolchain(kernel=kernel, directory=Cache(paths.cache).entry(name, key, build))


def host_root(paths: Paths) -> Path:
    """Return the root file system that lab hosts are deployed on, as a directory: Debian, its kernel's modules and
    headers, nothing of ours. Nobody may write to it.
    """
    lines = paths.host_packages.read_text(encoding="utf-8").splitlines()
    packages = sorted(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    chain = toolchain(paths, KERNELS[DEFAULT_KERNEL])

    def build(directory: Path) -> None:
        with step("lab host root file system"):
            root = directory / "root"
            _mmdebstrap(paths, "host", root, "trixie", packages, hook=_PREPARE_HOST)
            # the toolchain's own, not packages: the mirror may have moved on to another kernel since
            for place in ("usr/src", "usr/lib/modules", *_glob(chain.root, "usr/lib/linux-kbuild-*")):
                _logged(paths, "host-kernel", ["cp", "-a", "-T", chain.root / place, root / place])

    key = digest([*packages, _PREPARE_HOST, chain.directory.name])
    return Cache(paths.cache).entry("host-root", key, build) / "root"


def _glob(root: Path, pattern: str) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.glob(pattern))


def qemu_root(paths: Paths) -> Path:
    """Return a directory with a new QEMU and all it needs, libc included; nothing in it is configured."""
    suite, packages = "trixie-backports", ["qemu-system-x86"]

    def build(directory: Path) -> None:
        with step("private QEMU"):
            _mmdebstrap(paths, "qemu", directory / "root", suite, packages, variant="extract")

    return Cache(paths.cache).entry("qemu", digest([suite, *packages]), build) / "root"


def _mmdebstrap(
    paths: Paths,
    name: str,
    root: Path,
    suite: str,
    packages: Sequence[str],
    *,
    variant: str = "minbase",
    hook: str | None = None,
) -> None:
    """`suite` may be a SUITE-backports: what is there is preferred to what is in SUITE."""
    if os.geteuid() != 0:
        raise LabError(f"building {name} needs root (it makes a Debian root file system): run it with sudo once")
    if shutil.which("mmdebstrap") is None:
        raise LabError("mmdebstrap is missing: install the packages of tests/packages.txt")
    mirror = debian_mirror()
    stable = suite.removesuffix("-backports")
    command: list[str | Path] = [
        "mmdebstrap",
        "--mode=root",
        f"--variant={variant}",
        "--keyring=/usr/share/keyrings",
        '--aptopt=APT::Install-Recommends "false"',
        '--aptopt=Acquire::Retries "3"',
        *([f'--aptopt=APT::Default-Release "{suite}"'] if suite != stable else []),
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        f"--include={','.join(packages)}",
        *([f"--customize-hook={hook}"] if hook else []),
        stable,
        root,
        *(f"deb {mirror} {source} main" for source in dict.fromkeys((stable, suite))),
    ]
    _logged(paths, name, command, environ={"DEBIAN_FRONTEND": "noninteractive"})


def _ext4(paths: Paths, name: str, source: Path, image: Path, *, spare_mib: int) -> None:
    """Make a sparse image of a directory, with room for what is written while it runs."""
    entries = [entry.lstat() for entry in source.rglob("*")]
    used = sum(entry.st_blocks * 512 for entry in entries)
    with image.open("wb") as file:
        file.truncate(used + used // 8 + spare_mib * 1024 * 1024)
    _logged(paths, f"{name}-mkfs", [*_MKFS, "-N", str(len(entries) + _SPARE_INODES), "-d", source, image])


def _logged(paths: Paths, name: str, command: Sequence[str | Path], environ: dict[str, str] | None = None) -> None:
    build_step(command, name=name, timeout_s=_BUILD_LIMIT_S, log=paths.cache / "logs" / f"{name}.log", environ=environ)
