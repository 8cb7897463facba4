# SPDX-License-Identifier: Apache-2.0
"""Builds the shim as `vgpumgr/gpu/_shim*.so`. The shim is a library for LD_PRELOAD, not a Python module.

The wheel build uses the names below, whose paths are relative to the project's root. `python -m vgpumgr.gpu._build`
builds the shim in place, in a source tree whose wheel was installed without it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NATIVE = "vgpumgr/gpu/native"
SOURCES = ("control.c", "driver.c", "groups.c", "memory.c", "record.c", "settings.c", "shim.c")
HEADERS = ("rm_abi.h", "shim.h")
COMPILE_ARGUMENTS = ("-O2", "-std=gnu11", "-fvisibility=hidden", "-pthread")
LINK_ARGUMENTS = ("-pthread", "-ldl")


def build(target: Path, *, compile_arguments: tuple[str, ...] = ()) -> Path:
    """Compile the shim as `target`. Raises subprocess.CalledProcessError if the compiler fails."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch, "shim.so")
        subprocess.run(
            [
                *compiler,
                *COMPILE_ARGUMENTS,
                *compile_arguments,
                "-fPIC",
                "-shared",
                "-o",
                built,
                *(ROOT / NATIVE / name for name in SOURCES),
                *LINK_ARGUMENTS,
            ],
            check=True,
        )
        # A running process may have the file mapped, so the file must not be truncated.
        built.replace(target)
    return target


if __name__ == "__main__":
    sys.stdout.write(f"{build(Path(__file__).parent / '_shim.so')}\n")
