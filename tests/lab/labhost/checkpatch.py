# SPDX-License-Identifier: Apache-2.0
"""Fetches the kernel's style checker, which Debian ships only in the package of the whole kernel's sources."""

import shutil
import tarfile
from pathlib import Path

from labhost.cache import Cache, digest
from labhost.errors import LabError
from labhost.own_kernel import source_package
from labhost.paths import Paths
from labhost.progress import step
from labhost.rootfs import mmdebstrap
from labhost.toolchain import DEFAULT_KERNEL, KERNELS

_FILES = ("checkpatch.pl", "const_structs.checkpatch", "spelling.txt")


def checkpatch(paths: Paths) -> Path:
    """Return the program. The files it reads lie beside it; the rest of the sources is not kept."""
    suite, package = KERNELS[DEFAULT_KERNEL].suite, source_package(DEFAULT_KERNEL)

    def build(directory: Path) -> None:
        with step("the kernel's style checker, from its sources"):
            root = directory / "root"
            mmdebstrap(paths, "checkpatch", root, suite, [package], variant="extract")
            missing = {f"{package}/scripts/{name}" for name in _FILES}
            with tarfile.open(root / "usr" / "src" / f"{package}.tar.xz", "r|xz") as archive:
                while missing and (member := archive.next()):
                    if member.name in missing and (content := archive.extractfile(member)):
                        (directory / Path(member.name).name).write_bytes(content.read())
                        missing.remove(member.name)
            if missing:
                raise LabError(f"not in Debian's package {package}: {', '.join(sorted(missing))}")
            shutil.rmtree(root)

    return Cache(paths.cache).entry("checkpatch", digest([suite, package, *_FILES]), build) / "checkpatch.pl"
