# SPDX-License-Identifier: Apache-2.0
"""Sources of the checkout at one moment."""

import os
import stat
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labhost.cache import digest


@dataclass(frozen=True)
class Snapshot:
    """Sources at one moment: the build uses exactly the files that were hashed, even while someone edits them."""

    files: Mapping[str, tuple[int, bytes]]
    """Mode and content, or the target of a symbolic link, by path relative to the checkout."""

    @classmethod
    def take(cls, checkout: Path, places: Sequence[str]) -> "Snapshot":
        """Read files and directories, tracked or not, without those that git ignores; absent ones are left out."""
        files = {}
        for name in _source_names(checkout, places):
            with suppress(FileNotFoundError):
                files[name] = _read(checkout / name)
        return cls(files)

    def key(self, *others: str | bytes) -> str:
        """The cache key of a build result made from the sources and `others`."""
        contents = (part for name, (_, data) in sorted(self.files.items()) for part in (name, data))
        return digest([*others, *contents])

    def write(self, tree: Path) -> None:
        """Write the sources to `tree`, keeping the layout that their relative includes expect."""
        for name, (mode, data) in self.files.items():
            place = tree / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if stat.S_ISLNK(mode):
                place.unlink(missing_ok=True)
                place.symlink_to(os.fsdecode(data))
            else:
                place.write_bytes(data)
                place.chmod(mode & 0o777)


def _read(place: Path) -> tuple[int, bytes]:
    mode = place.lstat().st_mode
    return mode, os.fsencode(place.readlink()) if stat.S_ISLNK(mode) else place.read_bytes()


def _source_names(checkout: Path, places: Sequence[str]) -> list[str]:
    present = [place for place in places if (checkout / place).exists()]
    if not present:
        return []
    git = ["git", "-c", "safe.directory=*", "-C", str(checkout), "ls-files", "-z", "-co", "--exclude-standard", "--"]
    listing = subprocess.run([*git, *present], capture_output=True, check=False, timeout=60)
    if listing.returncode == 0:
        names = set(listing.stdout.decode().split("\0")) - {""}
    else:  # an unpacked release
        files = [file for place in present for file in [checkout / place, *(checkout / place).rglob("*")]]
        names = {str(file.relative_to(checkout)) for file in files if file.parent.name != "__pycache__"}
    return sorted(name for name in names if (checkout / name).is_symlink() or (checkout / name).is_file())
