# SPDX-License-Identifier: Apache-2.0
"""The client's library with programs that load it, and a player of broker and child."""

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

# Far more than anything takes on a loaded machine: reached only when a test fails.
LIMIT_S = 120.0


def make(*targets: Path | str) -> None:
    """Build what a test needs of compute/ from the present sources."""
    subprocess.run(["make", "-s", "-C", str(ROOT / "compute"), *map(str, targets)], check=True)


def compile_c(target: Path, *arguments: str) -> Path:
    """Compile a program of tests/compute/c, or elsewhere, against the generated headers."""
    includes = (f"-I{ROOT / 'compute'}", f"-I{BUILT / 'generated'}")
    subprocess.run(["gcc", *FLAGS, *includes, "-o", str(target), *arguments], check=True)
    return target


def vendors(folder: Path) -> Path:
    """A directory for OCL_ICD_VENDORS that has our library alone."""
    folder.mkdir(exist_ok=True)
    (folder / "vgpu.icd").write_text(f"{LIBRARY}\n")
    return folder


class Played:
    """A program's way to a player: sockets in `folder`, one player a program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        source = ROOT / "tests" / "compute" / "c"
        make(LIBRARY)
        self.player = compile_c(folder / "play_child", str(source / "play_child.c"))
        self.client = compile_c(folder / "icd_client", str(source / "icd_client.c"), "-lOpenCL")
        self.vendors = vendors(folder / "vendors")

    @contextmanager
    def play(self, mode: Sequence[str]) -> Iterator[tuple[dict[str, str], subprocess.Popen[str]]]:
        """A player in that mode; gives the environment of a program that uses it, and the player."""
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
        """Run the client's scenario against a player in that mode."""
        with self.play(mode) as (environment, _):
            return subprocess.run(
                [self.client, scenario],
                env={**environment, **more},
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
