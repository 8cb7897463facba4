# SPDX-License-Identifier: Apache-2.0
"""Builds our own kernel modules and guest tools from a copy of the sources, in a toolchain's root.

The checkout is only read; results are copied to build/kmod/ for people and other tools.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labhost.cache import SHORT_LIVED_S, Cache
from labhost.command import build_step
from labhost.errors import LabError
from labhost.paths import Paths
from labhost.progress import say, step
from labhost.rootfs import in_root
from labhost.snapshot import Snapshot
from labhost.toolchain import Kernel, Toolchain

SOURCES = ("kmod", "tests/kmod/client", "tests/kmod/defects", "tests/kmod/exercise", "tests/kmod/vendor", "VERSION")
_MODULES = ("kmod/vgpumgr.ko", "kmod/guest/vgpu_guest.ko", "tests/kmod/vendor/vgpu_vendor.ko")
"""Our modules, and a driver with a function that our module adopts."""
_MODULES_OF_OWN_KERNEL = ("kmod/kunit/vgpumgr_kunit.ko", "tests/kmod/defects/vgpu_defects.ko")
"""KUnit's cases, and the module that proves that kernels built here find defects."""
_TOOLS = {
    "kmod/guest/tool": "vgpu-guest",
    "tests/kmod/client": "vgpu-client",
    "tests/kmod/exercise": "vgpu-exercise",
}
_BUILD_LIMIT_S = 900.0
_EACH_FUNCTION_IN_ITS_STACK = (
    "-fno-inline-functions-called-once",
    "-fno-inline-small-functions",
    "-fno-optimize-sibling-calls",
)
"""For kernels where allocations fail: tests look in stacks for the functions that allocated."""


@dataclass(frozen=True, kw_only=True)
class Artefacts:
    """The build results for one kernel; empty where the sources do not exist yet."""

    modules: Sequence[Path] = ()
    binaries: Sequence[Path] = ()

    @property
    def of_guests(self) -> Sequence[Path]:
        """The modules that belong into guests: the guest driver, and a module with defects that the kernels built here
        must report."""
        return [path for path in self.modules if path.name in ("vgpu_guest.ko", "vgpu_defects.ko")]


def kernel_modules(paths: Paths, toolchain: Toolchain) -> Sequence[Path]:
    """Return vgpumgr.ko and vgpu_guest.ko for the toolchain's kernel."""
    if not (paths.checkout / "kmod" / "Makefile").is_file():
        say("kmod/Makefile is not there: no kernel modules")
        return ()
    sources = Snapshot.take(paths.checkout, SOURCES)
    name = f"kmod-{toolchain.kernel.name}"

    def build(directory: Path) -> None:
        with step(f"kernel modules for {toolchain.release}"):
            tree = directory / "source"
            sources.write(tree)
            flags = ["-Werror", *(_EACH_FUNCTION_IN_ITS_STACK if toolchain.kernel.fragments else ())]
            strict = [f"ARCH={toolchain.kernel.architecture}", "W=1", f"KCFLAGS={' '.join(flags)}"]
            make = ["make", f"-j{os.cpu_count() or 1}", "-C", "kmod", f"KDIR={toolchain.headers}", *strict, "modules"]
            command = in_root(toolchain.root, tree, make)
            build_step(command, name=name, log=paths.cache / "logs" / f"{name}.log", timeout_s=_BUILD_LIMIT_S)
            for tested in ("vendor", "defects") if toolchain.kernel.fragments else ("vendor",):
                make = ["make", "-C", toolchain.headers, f"M=/src/tests/kmod/{tested}", *strict, "modules"]
                command = in_root(toolchain.root, tree, make)
                build_step(command, name=name, log=paths.cache / "logs" / f"{tested}.log", timeout_s=_BUILD_LIMIT_S)
            built = built_modules(tree, toolchain.kernel)
            for module in built:
                shutil.copy2(tree / module, directory)
            # debug information makes loading slow; it is kept in build/kmod
            command = in_root(toolchain.root, tree, ["strip", "--strip-debug", *built])
            build_step(command, name="strip", log=paths.cache / "logs" / "strip.log", timeout_s=60)
            (directory / "stripped").mkdir()
            for module in built:
                shutil.copy2(tree / module, directory / "stripped")
            shutil.rmtree(tree)

    entry = Cache(paths.cache).entry(
        name, sources.key(toolchain.directory.name, _own_source()), build, unused_limit_s=SHORT_LIVED_S
    )
    _publish(entry, paths.artefacts / toolchain.kernel.name)
    return sorted((entry / "stripped").iterdir())


def built_modules(tree: Path, kernel: Kernel) -> Sequence[str]:
    """Return the modules that a build left in `tree`; LabError unless it has all modules of that kernel."""
    wanted = (*_MODULES, *(_MODULES_OF_OWN_KERNEL if kernel.fragments else ()))
    missing = [module for module in wanted if not (tree / module).is_file()]
    if missing:
        raise LabError(f"the build for kernel {kernel.name} left no {', '.join(missing)}")
    return wanted


def tools(paths: Paths, toolchain: Toolchain) -> Sequence[Path]:
    """Return those of the static programs vgpu-guest, vgpu-client and vgpu-exercise whose sources exist."""
    sources = Snapshot.take(paths.checkout, SOURCES)
    present = [place for place in _TOOLS if (paths.checkout / place / "Makefile").is_file()]
    for place in _TOOLS.keys() - set(present):
        say(f"{place}/Makefile is not there: no {_TOOLS[place]}")
    if not present:
        return ()

    def build(directory: Path) -> None:
        with step(f"static programs {', '.join(_TOOLS[place] for place in present)}"):
            tree = directory / "source"
            sources.write(tree)
            for place in present:
                make = ["make", "-C", place, f"CC={toolchain.kernel.compiler}", "LDFLAGS=-static"]
                log = paths.cache / "logs" / f"{_TOOLS[place]}.log"
                build_step(in_root(toolchain.root, tree, make), name=place, log=log, timeout_s=_BUILD_LIMIT_S)
                shutil.copy2(tree / place / _TOOLS[place], directory)
            shutil.rmtree(tree)

    entry = Cache(paths.cache).entry(
        "kmod-tools", sources.key(toolchain.directory.name, _own_source()), build, unused_limit_s=SHORT_LIVED_S
    )
    return _publish(entry, paths.artefacts / "bin")


def _own_source() -> bytes:
    return Path(__file__).read_bytes()


def _publish(entry: Path, place: Path) -> Sequence[Path]:
    """Copy results to the checkout's build directory, replacing each file atomically; return the cached ones."""
    results = sorted(path for path in entry.iterdir() if path.is_file())
    place.mkdir(parents=True, exist_ok=True)
    for result in results:
        published = place / result.name
        if not published.is_file() or published.read_bytes() != result.read_bytes():
            partial = place / f".{result.name}.{os.getpid()}"
            shutil.copy2(result, partial)
            partial.replace(published)
    return results
