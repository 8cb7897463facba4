# SPDX-License-Identifier: Apache-2.0
"""Makes Debian root file systems with mmdebstrap, and file system images of directories."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from labhost.command import build_step
from labhost.errors import LabError
from labhost.mirror import debian_mirror
from labhost.paths import Paths

_BUILD_LIMIT_S = 1800.0
_SPARE_INODES = 16384
MKFS = ("mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-m", "0", "-E", "lazy_itable_init=0")


def mmdebstrap(
    paths: Paths,
    name: str,
    root: Path,
    suite: str,
    packages: Sequence[str],
    *,
    variant: str = "minbase",
    hook: str | None = None,
) -> None:
    """Make a Debian root file system at `root`.

    `suite` may be a SUITE-backports: its packages are preferred to those in SUITE. `hook` is a shell script
    whose $1 is the root.
    """
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
    logged(paths, name, command, environ={"DEBIAN_FRONTEND": "noninteractive"})


def ext4(paths: Paths, name: str, source: Path, image: Path, *, spare_mib: int) -> None:
    """Make a sparse image of a directory, with spare room for files written at run time."""
    entries = [entry.lstat() for entry in source.rglob("*")]
    used = sum(entry.st_blocks * 512 for entry in entries)
    with image.open("wb") as file:
        file.truncate(used + used // 8 + spare_mib * 1024 * 1024)
    logged(paths, f"{name}-mkfs", [*MKFS, "-N", str(len(entries) + _SPARE_INODES), "-d", source, image])


def logged(
    paths: Paths,
    name: str,
    command: Sequence[str | Path],
    *,
    environ: dict[str, str] | None = None,
    timeout_s: float = _BUILD_LIMIT_S,
) -> None:
    """Run a step with its output in the cache's `logs/NAME.log`."""
    build_step(command, name=name, timeout_s=timeout_s, log=paths.cache / "logs" / f"{name}.log", environ=environ)


def in_root(root: Path, tree: Path, command: Sequence[str]) -> list[str | Path]:
    """Wrap a command so that it runs in a root file system, with `tree` on /src and as working directory.

    The mounts live in their own mount namespace and end with the command. objtool needs /proc. The caller's directory
    for temporary files is not mounted.
    """
    script = (
        'root=$1 tree=$2; shift 2; mount -t proc proc "$root/proc" && mkdir -p "$root/src" && '
        'mount --bind "$tree" "$root/src" && exec chroot "$root" '
        '/usr/bin/env -u TMPDIR -C /src PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"'
    )
    return ["unshare", "--mount", "sh", "-c", script, "lab", root, tree, *command]
