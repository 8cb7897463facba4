# SPDX-License-Identifier: Apache-2.0
"""The deployed product in a lab host: API, agent, helper and hook as the ansible role installed them.

`deployed()` starts them (`lab-product`) and gives the installed CLI with an operator's token. Nothing is undone: a lab
host lives for one command.
"""

import json
import subprocess
import time
import uuid as uuids
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rig.api import Api

BIN = Path("/opt/vgpumgr/bin")
DEADLINE_S = 60.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 0.7
MEMORY = "16M"


class CommandFailedError(Exception):
    """The CLI ended with a status other than 0. `problem`: its error output, as JSON if it was JSON."""

    def __init__(self, arguments: tuple[str, ...], status: int, error: str) -> None:
        self.status = status
        self.error = error.strip()
        super().__init__(f"vgpumgr {' '.join(arguments)}: exit status {status}: {self.error}")


@dataclass(frozen=True)
class Product:
    """A running installation. Not for use by several threads."""

    host: str

    def text(self, *arguments: str, timeout_s: float = 120) -> str:
        """Run the CLI and return what it printed; raises CommandFailedError."""
        done = subprocess.run(
            [BIN / "vgpumgr", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode:
            raise CommandFailedError(arguments, done.returncode, done.stderr)
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """Run the CLI with `-o json` and parse its output."""
        return json.loads(self.text(*arguments, "-o", "json"))

    def tenant(self, name: str, *, share_permille: int, timeslice_us: int, slices: int = 4, memory: str = "1G") -> None:
        """Make a tenant with a quota."""
        self.text("create", "tenant", name)
        self.text(
            "set", "quota", name, "--share-permille", str(share_permille), "--memory", memory,
            "--slices", str(slices), "--timeslice-us", str(timeslice_us),
        )  # fmt: skip

    def profile(self, name: str, *, share_permille: int, mode: str = "fair") -> None:
        """Make a profile of the smallest memory class."""
        self.text(
            "create", "profile", name, "--share-permille", str(share_permille), "--memory", MEMORY, "--mode", mode
        )

    def claim(self, tenant: str, profile: str, *, vm_uuid: str | None = None) -> str:
        """Claim a slice; return its UUID."""
        vm = ("--vm", vm_uuid) if vm_uuid else ()
        return str(self.json("create", "slice", "--tenant", tenant, "--profile", profile, *vm)["id"])

    def shares(self, *, interval_s: float) -> dict[str, dict[str, Any]]:
        """What `top` reports about each tenant, over about `interval_s`."""
        rows = self.json("top", "--once", "--interval", str(interval_s))
        return {row["tenant"]: row for row in rows}

    def used(self, tenant: str) -> tuple[int, int, int]:
        """A tenant's use of its quota: permille, bytes, slices."""
        quota = self.json("get", "quota", tenant)
        return quota["used_share_permille"], quota["used_mem_bytes"], quota["used_slices"]

    def gpu(self) -> dict[str, Any]:
        """The host's accelerator in the API."""
        (gpu,) = self.json("get", "gpus", "--host", self.host)
        return dict(gpu)


def eventually(condition: Callable[[], object], *, what: str, timeout_s: float = DEADLINE_S) -> None:
    """Wait until a condition holds; TimeoutError names the condition.

    The interval between checks grows: many conditions query the API, and frequent queries slow it down in an emulated
    lab host.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = PAUSE_MIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(pause_s)
        pause_s = min(1.3 * pause_s, PAUSE_MAX_S)


def new_vm_uuid() -> str:
    return str(uuids.uuid4())


def deployed() -> Product:
    """Start what the role installed, unless it runs, and wait until its host is online."""
    subprocess.run(["lab-product"], check=True, timeout=600)
    (host,) = Api().items("/v1/hosts")
    return Product(host=host["name"])
