# SPDX-License-Identifier: Apache-2.0
"""Builds the kernel's own VFIO selftests, from the newest kernel, as static programs that know our device."""

import shutil
from pathlib import Path

from labhost.cache import Cache, digest
from labhost.paths import Paths
from labhost.progress import step
from labhost.rootfs import in_root, logged, mmdebstrap
from labhost.snapshot import Snapshot

# 6.18 introduced the tests; their results for a device do not depend on the kernel they come with.
_SUITE = "trixie-backports"
_PACKAGES = ("gcc", "libc6-dev", "linux-source", "make", "rsync", "uuid-dev", "xz-utils")
_SOURCES = ("kmod/uapi/vgpu_device.h", "tests/kmod/selftests")

_BUILD = """set -eu
cd /usr/src
archive=$(echo linux-source-*.tar.xz)
linux=${archive%.tar.xz}
tar -xf "$archive" $(printf "$linux/%s " \\
    Kbuild Makefile arch/x86 drivers/dma drivers/net/ethernet/intel/igb include scripts tools usr/include)
sh /src/tests/kmod/selftests/build "/usr/src/$linux" /src/kmod/uapi /src/programs
"""


def vfio_selftests(paths: Paths) -> Path:
    """Return the directory of the programs. Copies are in build/selftests for use in a lab host."""
    sources = Snapshot.take(paths.checkout, _SOURCES)

    def build(directory: Path) -> None:
        with step("the kernel's VFIO selftests"):
            root, tree = directory / "root", directory / "source"
            mmdebstrap(paths, "selftests", root, _SUITE, _PACKAGES)
            sources.write(tree)
            logged(paths, "selftests-make", in_root(root, tree, ["sh", "-c", _BUILD]))
            (tree / "programs").rename(directory / "programs")
            shutil.rmtree(root)
            shutil.rmtree(tree)

    entry = Cache(paths.cache).entry("selftests", sources.key(digest([_SUITE, *_PACKAGES, _BUILD])), build)
    shutil.copytree(entry / "programs", paths.selftests, dirs_exist_ok=True)
    return entry / "programs"
