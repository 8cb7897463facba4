# SPDX-License-Identifier: Apache-2.0
"""A fake libnvidia-ml.so.1. It is built once per run, reads its answers from a file, and logs the calls."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parent / "fake_nvml.c"
H200 = "GPU-11111111-2222-3333-4444-555555555555"
L4 = "GPU-66666666-7777-8888-9999-000000000000"


def build(directory: Path) -> Path:
    """Compile it as `directory`/libnvidia-ml.so.1."""
    library = directory / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-fvisibility=hidden", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, str(SOURCE), "-o", str(library)], check=True, timeout=60)
    return library


@dataclass
class FakeNvml:
    """The library's answers. A test may change `lines` at any time and then calls `save`."""

    directory: Path
    library: Path
    lines: list[str] = field(default_factory=lambda: ["driver 580.142", gpu()])

    def __post_init__(self) -> None:
        self.log.touch()
        self.save()

    @property
    def log(self) -> Path:
        return self.directory / "nvml.log"

    @property
    def calls(self) -> list[str]:
        """The functions that were called, in order."""
        return self.log.read_text().split()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "FAKE_NVML": str(self.directory / "nvml"),
            "FAKE_NVML_LOG": str(self.log),
            "LD_LIBRARY_PATH": str(self.library.parent),
        }

    def says(self, *lines: str) -> None:
        """Replace all answers."""
        self.lines = list(lines)
        self.save()

    def adds(self, *lines: str) -> None:
        self.says(*self.lines, *lines)

    def save(self) -> None:
        new = self.directory / "nvml.new"
        new.write_text("".join(f"{line}\n" for line in self.lines))
        new.rename(self.directory / "nvml")


def gpu(
    uuid: str = H200,
    *,
    bus: int = 0x3B,
    mig: str = "0",
    mode: str = "0",
    virtualization: str = "0",
    name: str = "NVIDIA H200",
) -> str:
    """Return the line of a GPU. `mig` 2: a change is pending; "-": the GPU does not support the query."""
    return f"gpu {uuid} {bus:#x} {mig} {mode} {virtualization} {name}"
