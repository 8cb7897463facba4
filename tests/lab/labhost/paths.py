# SPDX-License-Identifier: Apache-2.0
"""Every place the lab reads or writes."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Paths:
    """The tool writes to the checkout only under `build/`; all checkouts of a user share the cache."""

    checkout: Path
    cache: Path

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> "Paths":
        """The checkout is the one this file is part of; the cache follows the XDG rules."""
        home = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(
            checkout=Path(__file__).resolve().parents[3],
            cache=Path(environ.get("VGPUMGR_CACHE") or home / "vgpumgr"),
        )

    @property
    def inside_scripts(self) -> Path:
        """Scripts that run inside virtual machines."""
        return self.checkout / "tests" / "lab" / "inside"

    @property
    def host_packages(self) -> Path:
        """Debian packages of the lab host, one a line."""
        return self.checkout / "tests" / "lab" / "host-packages.txt"

    @property
    def kernel_configs(self) -> Path:
        """Configuration fragments of the kernels that are built here."""
        return self.checkout / "tests" / "lab" / "kernels"

    @property
    def artefacts(self) -> Path:
        """Copies of the modules and programs built from kmod/, for people and other tools."""
        return self.checkout / "build" / "kmod"

    @property
    def selftests(self) -> Path:
        """Copies of the kernel's VFIO selftests."""
        return self.checkout / "build" / "selftests"

    @property
    def runs(self) -> Path:
        """One directory for each run; removed when the run succeeds."""
        return self.checkout / "build" / "lab" / "runs"

    @property
    def persistent(self) -> Path:
        """State of the one lab host started by `lab up`."""
        return self.checkout / "build" / "lab" / "up"
