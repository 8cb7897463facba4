# SPDX-License-Identifier: Apache-2.0
"""What the tests of supervisor, child, gate and sandbox share: programs that they build."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPUTE = ROOT / "compute"
FLAGS = ["-std=c11", "-O2", "-g", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pthread"]


def build(output: Path, *sources: Path, flags: tuple[str, ...] = ()) -> Path:
    """Compile and link one C program of the tests with sources of the product."""
    command = ["gcc", *FLAGS, *flags, f"-I{COMPUTE}", f"-I{ROOT / 'kmod'}", "-o", str(output), *map(str, sources)]
    subprocess.run(command, check=True)
    return output
