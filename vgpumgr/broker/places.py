# SPDX-License-Identifier: Apache-2.0
"""Finds the broker's programs, its sockets and the accelerator's library."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vgpumgr.errors import BrokerMissingError, SettingsError

INSTALLED = Path("/usr/lib/vgpumgr")
CHECKOUT = Path(__file__).resolve().parents[2] / "build/compute"
RUN_DIRECTORY = "VGPUMGR_RUN_DIRECTORY"
RUNTIME_DIRECTORY = "XDG_RUNTIME_DIR"
DIRECTORY_NAME = "vgpumgr-broker"
LIBRARY_DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
VENDORS = Path("/etc/OpenCL/vendors")


LAUNCHER = "vgpu-native"


@dataclass(frozen=True)
class Programs:
    """The files of a broker. `library` is the OpenCL library that programs load."""

    broker: Path
    supervisor: Path
    child: Path
    library: Path


def programs(directories: tuple[Path, ...] = (CHECKOUT, INSTALLED)) -> Programs:
    """Return the programs of the checkout, or else the installed ones. BrokerMissingError."""
    for directory in directories:
        found = Programs(
            broker=directory / "vgpu-broker",
            supervisor=directory / "vgpu-supervisor",
            child=directory / "vgpu-child",
            library=directory / "libvgpu-opencl.so",
        )
        missing = [path.name for path in vars(found).values() if not path.is_file()]
        if not missing:
            return found
    raise _missing(missing[0], directories)


def launcher(directories: tuple[Path, ...] = ()) -> Path:
    """Return the launcher of native programs, from the checkout or else the installed one. BrokerMissingError."""
    directories = directories or (CHECKOUT, INSTALLED)
    for directory in directories:
        if (found := directory / LAUNCHER).is_file():
            return found
    raise _missing(LAUNCHER, directories)


def _missing(name: str, directories: tuple[Path, ...]) -> BrokerMissingError:
    return BrokerMissingError(
        f"{name} is neither in {' nor in '.join(map(str, directories))};"
        " run `make compute` in a checkout, or install vgpumgr's compute programs"
    )


def default_directory(env: Mapping[str, str], *, root: Path = Path("/")) -> Path:
    """Return the default run directory of a broker that this user starts."""
    if given := env.get(RUN_DIRECTORY):
        return Path(given)
    if os.geteuid() != 0 and (base := env.get(RUNTIME_DIRECTORY)):
        return Path(base) / DIRECTORY_NAME
    return root / "run" / DIRECTORY_NAME


def find_directory(env: Mapping[str, str], *, root: Path = Path("/")) -> Path:
    """Return the run directory that this user's programs use: that of the user's own broker, or else of the host's."""
    own = default_directory(env, root=root)
    host = root / "run" / DIRECTORY_NAME
    return host if RUN_DIRECTORY not in env and not _is_directory(own) and _is_directory(host) else own


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except PermissionError:  # after sudo, XDG_RUNTIME_DIR can be another user's
        return False


def pocl_library(vendors: Path = VENDORS, directories: tuple[str, ...] = LIBRARY_DIRECTORIES) -> Path:
    """Return PoCL's library, found like the OpenCL loader finds it. SettingsError."""
    for file in sorted(vendors.glob("*pocl*.icd")):
        name = file.read_text(encoding="utf-8").strip()
        for candidate in (Path(name), *(Path(directory) / name for directory in directories)):
            if candidate.is_absolute() and candidate.is_file():
                return candidate
    raise SettingsError(
        "no library is set in [accelerator], and PoCL is not installed; install pocl-opencl-icd, or set library to the"
        " accelerator's OpenCL library"
    )
