# SPDX-License-Identifier: Apache-2.0
"""Compiles files of the kernel module into a process, against the kernel that `kernel.h` simulates."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KMOD = ROOT / "kmod"

# Every file that a guest or its VMM reaches, and the engines. Of the operator's side (netlink, sysfs), only fuzz_dump.c
# includes a part.
FOLDERS = {
    "function": "access config_space device irq permit registers",
    "engine": "binding binding_file child engine item leaving lending memory processor ring soft window "
    "window_executor worker dma staging",
    "control": "executor_file fault numbers reports tenant",
    "migration": "migration migration_file",
}
MODULE = tuple(f"{folder}/{name}" for folder, names in FOLDERS.items() for name in names.split())
# The user-space headers that kernel.h itself uses.
REAL = ("linux/const.h", "linux/errno.h", "linux/ioctl.h", "linux/limits.h", "linux/types.h")
EXTENDED = ("linux/netlink.h", "linux/pci_regs.h", "linux/vfio.h")
INCLUDE = re.compile(r"^#include <((?:uapi/)?(?:linux|net|asm|trace|kunit)/[^>]+)>", re.M)


def headers(folder: Path, kmod: Path) -> None:
    """Make every kernel header that the module names lead to `kernel.h`."""
    names = {name for path in kmod.glob("**/*.[ch]") for name in INCLUDE.findall(path.read_text())}
    for name in sorted(names.difference(REAL).union(EXTENDED)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        real = f"#include_next <{name}>\n" if name in EXTENDED else ""
        path.write_text(f'{real}#include "kernel.h"\n')


def build(
    folder: Path,
    sources: Sequence[str],
    *,
    module: Sequence[str] = MODULE,
    compiler: str | None = None,
    kmod: Path = KMOD,
) -> Path:
    """Build `sources` under the sanitizers, into a program named after the first; a libFuzzer program if `compiler` is
    clang."""
    headers(folder / "include", kmod)
    libfuzzer = compiler == "clang"
    flags = [
        "-std=gnu11",
        "-g",
        "-O1",
        "-Wall",
        "-Wno-unused-function",
        "-Wno-format",
        "-Wno-incompatible-pointer-types",
        "-fno-omit-frame-pointer",
    ]
    flags += ["-D_GNU_SOURCE", "-DVGPU_COMPAT_H", *(["-DLIBFUZZER"] if libfuzzer else [])]
    flags += [f"-fsanitize={'fuzzer,' if libfuzzer else ''}address,undefined", "-fno-sanitize-recover=all"]
    include = ["-I", str(folder / "include"), "-I", str(HERE), "-I", str(kmod), "-include", str(HERE / "kernel.h")]
    compile_ = [compiler or os.environ.get("CC", "cc"), *flags]
    files = [*(HERE / f"{name}.c" for name in sources), *(kmod / f"{name}.c" for name in module)]
    if "control/tenant" in module:
        files += sorted((kmod / "sched").glob("*.c"))
    if "migration/migration" in module:  # plain C that includes nothing of the simulated kernel
        files += [folder / "migration_stream.o", folder / "crc32c.o"]
        plain = [str(kmod / "migration/migration_stream.c"), str(kmod / "guest/tool/crc32c.c")]
        subprocess.run([*compile_, "-I", str(kmod), "-c", *plain], check=True, cwd=folder)
    program = folder / f"{sources[0]}{'.libfuzzer' if libfuzzer else ''}"
    command = [*compile_, *include, "-o", str(program), *map(str, files)]
    subprocess.run(command, check=True)
    return program
