# SPDX-License-Identifier: Apache-2.0
"""Compiles the fake's libraries once for the present sources."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
NATIVE = ROOT / "vgpumgr" / "gpu" / "native"
BUILT = ROOT / "build" / "fakerm"
WARNINGS = ("-Wall", "-Wextra", "-Werror")


def compile_library(name: str, source: Path, *options: str) -> Path:
    """Compile a shared library from one source file. The name of its folder depends on the sources."""
    inputs = [source, *sorted(HERE.glob("*.h")), *sorted(NATIVE.glob("*.h"))]
    key = hashlib.sha256(b"\0".join([*(path.read_bytes() for path in inputs), *map(str.encode, options)])).hexdigest()
    target = BUILT / key[:16] / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch, name)
        compiler = shlex.split(os.environ.get("CC", "cc"))
        flags = ["-O2", "-fPIC", "-shared", *WARNINGS, f"-I{HERE}", f"-I{NATIVE}", *options]
        subprocess.run([*compiler, *flags, "-o", built, source, "-ldl"], check=True)
        built.replace(target)
    return target


def device_library() -> Path:
    """The library that plays the device files. It goes into LD_PRELOAD after the shim."""
    return compile_library("fakerm.so", HERE / "fakerm.c")


def cuda_library() -> Path:
    """The fake libcuda. Its folder goes into LD_LIBRARY_PATH."""
    return compile_library("libcuda.so.1", HERE / "cuda.c", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1")
