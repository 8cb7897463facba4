# SPDX-License-Identifier: Apache-2.0
"""The client's library, programs that load it, and a player of broker and child."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "compute"
LIBRARY = BUILT / "libvgpu-opencl.so"
FLAGS = ("-std=c11", "-O1", "-g", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pthread")

# Longer than any step takes on a loaded machine. Only failing tests reach this limit.
LIMIT_S = 120.0


def make(*targets: Path | str) -> None:
    """Build targets of compute/ from the present sources."""
    subprocess.run(["make", "-s", "-C", str(ROOT / "compute"), *map(str, targets)], check=True)


def compile_c(target: Path, *arguments: str) -> Path:
    """Compile a C program of the tests against the generated headers."""
    includes = (f"-I{ROOT / 'compute'}", f"-I{BUILT / 'generated'}")
    subprocess.run(["gcc", *FLAGS, *includes, "-o", str(target), *arguments], check=True)
    return target


def vendors(folder: Path) -> Path:
    """A directory for OCL_ICD_VENDORS that names only our library."""
    folder.mkdir(exist_ok=True)
    (folder / "vgpu.icd").write_text(f"{LIBRARY}\n")
    return folder


class Played:
    """Connects programs to players. The sockets are in `folder`, and each program has its own player."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        source = ROOT / "tests" / "compute" / "c"
        make(LIBRARY)
        self.player = compile_c(folder / "play_child", str(source / "play_child.c"))
        self.client = compile_c(folder / "icd_client", str(source / "icd_client.c"), "-lOpenCL")
        self.vendors = vendors(folder / "vendors")

    @contextmanager
    def play(self, mode: Sequence[str]) -> Iterator[tuple[dict[str, str], subprocess.Popen[str]]]:
        """Start a player in this mode. Yields the environment of a program that uses it, and the player's process."""
        path = self.folder / "socket"
        path.unlink(missing_ok=True)
        with subprocess.Popen([self.player, path, *mode], stdout=subprocess.PIPE, text=True) as player:
            try:
                assert player.stdout is not None
                assert player.stdout.readline() == "ready\n"
                environment = {"VGPUMGR_SOCKET": str(path), "OCL_ICD_VENDORS": str(self.vendors)}
                yield {**os.environ, **environment}, player
            finally:
                player.kill()

    def run(self, scenario: str, *mode: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a scenario of the client against a player in this mode."""
        with self.play(mode) as (environment, _):
            return subprocess.run(
                [self.client, scenario],
                env={**environment, **more},
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
