# SPDX-License-Identifier: Apache-2.0
"""Checks kmod/ with sparse. Sources that passed under a kernel are not checked under it again."""

import os
import shutil
from pathlib import Path

from labhost.cache import SHORT_LIVED_S, Cache
from labhost.command import build_step
from labhost.paths import Paths
from labhost.progress import step
from labhost.rootfs import in_root
from labhost.snapshot import Snapshot
from labhost.toolchain import Toolchain

_SOURCES = ("kmod", "VERSION")
_LIMIT_S = 900.0
_FLAGS = "-Wsparse-error"
# Debian's headers of 7.x lack the script that rejects Debian's sparse as too old. The options make up for what this
# sparse does not know.
_FLAGS_7X = f"{_FLAGS} -D__typeof_unqual__=__typeof__ '-D__builtin_strlen(text)=(sizeof(text)-1)'"


def sparse(paths: Paths, toolchain: Toolchain) -> None:
    """Raise BuildError with the output if sparse or the compiler finds anything."""
    sources = Snapshot.take(paths.checkout, _SOURCES)
    name = f"sparse-{toolchain.kernel.name}"
    newest = toolchain.kernel.split
    words = [
        "make", "-s", f"-j{os.cpu_count() or 1}", "-C", "kmod", f"KDIR={toolchain.headers}",
        "W=1", "KCFLAGS=-Werror", "C=2", f"CF={_FLAGS_7X if newest else _FLAGS}",
        *(["KBUILD_CHECKSRC=2"] if newest else []), "modules",
    ]  # fmt: skip

    def build(directory: Path) -> None:
        with step(f"sparse, for {toolchain.release}"):
            tree = directory / "source"
            sources.write(tree)
            command = in_root(toolchain.root, tree, words)
            build_step(command, name=name, log=paths.cache / "logs" / f"{name}.log", timeout_s=_LIMIT_S)
            shutil.rmtree(tree)

    key = sources.key(toolchain.directory.name, Path(__file__).read_bytes())
    Cache(paths.cache).entry(name, key, build, unused_limit_s=SHORT_LIVED_S)
