# SPDX-License-Identifier: Apache-2.0
"""Builds a kernel from Debian's source package and our configuration fragments.

The result has the layout of a Debian toolchain: kernel, modules, and a build tree at the place of the headers. The
build tree has only the files that external modules need.

A kernel of the architecture `um` (User-mode Linux) is a program of this machine. Its sources first get the patches and
drivers of tests/lab/kernels/uml.
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from labhost.errors import LabError
from labhost.paths import Paths
from labhost.rootfs import in_root, logged

PACKAGES = (
    "bc", "bison", "cpio", "flex", "libelf-dev", "libssl-dev", "patch", "python3-minimal", "rsync", "xz-utils",
)  # fmt: skip
NEWEST = "7.x"
"""Stands for the newest series of a suite; other series have their number as name."""
IMAGES = {"x86_64": "arch/x86/boot/bzImage", "um": "vmlinux"}
"""The file that is booted, by architecture."""
_BUILD_LIMIT_S = 4 * 3600.0
"""Half an hour on two processors."""

CONFIGURE = """set -eu
cd /usr/src
tar -xf linux-source-*.tar.xz
rm linux-source-*.tar.xz
mv linux-source-* linux
cd linux
for patch in /src/additions/*.patch; do
    [ ! -e "$patch" ] || patch --no-backup-if-mismatch -p1 <"$patch"
done
for driver in /src/additions/*.c; do
    [ ! -e "$driver" ] || cp "$driver" arch/um/drivers/
done
exec make KCONFIG_ALLCONFIG=/src/fragment allnoconfig
"""

BUILD = """set -eu
cd /usr/src/linux
nice -n "$NICE" make -s -j"$(nproc)" "${IMAGE##*/}" modules
release=$(make -s kernelrelease)
make -s INSTALL_MOD_STRIP=1 modules_install
rm -f "/usr/lib/modules/$release/build"
cp "$IMAGE" "/boot/vmlinuz-$release"
cp .config "/boot/config-$release"
find . -mindepth 1 -maxdepth 1 ! -name Makefile ! -name .config ! -name Module.symvers ! -name include \\
    ! -name scripts ! -name arch ! -name tools -exec rm -rf {} +
find arch -mindepth 1 -maxdepth 1 ! -name x86 ! -name um -exec rm -rf {} +
find tools -mindepth 1 -maxdepth 1 ! -name objtool -exec rm -rf {} +
find arch -name '*.[oa]' -delete
mv /usr/src/linux "/usr/src/linux-headers-$release"
printf '%s' "$release" > /kernel-release
"""


def source_package(series: str) -> str:
    """Return the name of Debian's package with the sources of a kernel series."""
    return "linux-source" if series == NEWEST else f"linux-source-{series}"


def build_kernel(
    paths: Paths, name: str, root: Path, *, architecture: str, fragment: str, additions: Sequence[Path], scratch: Path
) -> None:
    """Build the kernel in a root file system that has PACKAGES, a compiler and the source package.

    `additions`: patches of its sources, and drivers for arch/um/drivers. Raises LabError if the kernel's dependencies
    dropped settings of the fragment.
    """
    (scratch / "additions").mkdir(parents=True)
    (scratch / "fragment").write_text(fragment, encoding="ascii")
    for addition in additions:
        shutil.copy2(addition, scratch / "additions")
    # low priority for a kernel that takes half an hour, because nobody waits for it; the first tests wait for User-mode
    # Linux
    environ = {"ARCH": architecture, "IMAGE": IMAGES[architecture], "NICE": "0" if architecture == "um" else "19"}
    logged(paths, f"{name}-configure", in_root(root, scratch, ["sh", "-c", CONFIGURE]), environ=environ)
    lost = lost_settings(settings(fragment), settings((root / "usr/src/linux/.config").read_text(encoding="ascii")))
    if lost:
        raise LabError(f"{name}: the kernel's configuration has other values: {', '.join(lost)}")
    build = in_root(root, scratch, ["sh", "-c", BUILD])
    logged(paths, f"{name}-make", build, timeout_s=_BUILD_LIMIT_S, environ=environ)
    shutil.rmtree(scratch)


def settings(config: str) -> dict[str, str]:
    """Parse a .config; a setting that "is not set" has the value n."""
    found = {}
    for line in config.splitlines():
        if match := re.fullmatch(r"CONFIG_(\w+)=(.*)|# CONFIG_(\w+) is not set", line):
            found[match[1] or match[3]] = match[2] or "n"
    return found


def lost_settings(wanted: Mapping[str, str], got: Mapping[str, str]) -> list[str]:
    """Name each setting whose value differs from the wanted one."""
    return [
        f"{name}={got.get(name, 'n')} instead of {value}"
        for name, value in wanted.items()
        if got.get(name, "n") != value
    ]
