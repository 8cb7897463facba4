# SPDX-License-Identifier: Apache-2.0
"""The kernel module with other schedulers: the same engine, rings and workers, but some functions of the core are
replaced.

The sources of kmod/ do not change. A function that a picker (pickers/*.c) defines is compiled under another name where
the core defines it, so the picker can call the core's version.
"""

import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PICKERS = Path(__file__).parent / "pickers"
BUILT = Path("build/bench/kmod")
OURS = "vgpumgr"
"""The name of the unchanged module; the others are named by their keys in BASELINES."""
# All are built in one place, one after the other, so most files are compiled only once.
_MAKE = """
set -e
tar x
for key in %s; do
    cp -r baselines/$key/. kmod
    make -s -C kmod KDIR=$KDIR modules >&2
    strip --strip-debug -o $key.ko kmod/vgpumgr.ko
done
tar c *.ko
"""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """`sources`: files of pickers/. `replaced`: functions of the core, by the file of kmod/sched/ that defines them."""

    name: str
    sources: tuple[str, ...]
    replaced: tuple[tuple[str, str], ...]


_PICK = ("queue", "vgpu_queue_pick")
BASELINES = {
    "gvt_g": Baseline(
        name="GVT-g's policy",
        sources=("gvt_g",),
        replaced=(_PICK, ("run", "vgpu_sched_pick"), ("group", "vgpu_group_add"), ("group", "vgpu_group_remove")),
    ),
    "round_robin": Baseline(name="plain round robin", sources=("round_robin",), replaced=(_PICK,)),
    "unscheduled": Baseline(
        name="unscheduled",
        sources=("round_robin", "unscheduled"),
        replaced=(_PICK, ("item", "vgpu_slice_item_done")),
    ),
}


def _kbuild(baseline: Baseline) -> str:
    lines = [f"vgpumgr-y += sched/{source}.o" for source in baseline.sources]
    lines += [
        f"CFLAGS_sched/{file}.o += -D{function}={function.replace('vgpu_', 'core_', 1)}"
        for file, function in baseline.replaced
    ]
    return (ROOT / "kmod/Kbuild").read_text() + "\n".join(lines) + "\n"


def _sources() -> bytes:
    """Return an archive of the files that each baseline adds to kmod/ or replaces there."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for key, baseline in BASELINES.items():
            files = {"Kbuild": _kbuild(baseline)}
            files |= {f"sched/{source}.c": (PICKERS / f"{source}.c").read_text() for source in baseline.sources}
            for name, text in files.items():
                entry = tarfile.TarInfo(f"baselines/{key}/{name}")
                entry.size = len(text.encode())
                tar.addfile(entry, io.BytesIO(text.encode()))
    return archive.getvalue()


def build() -> None:
    """Compile a module with each baseline for the lab host's kernel, into BUILT. Raises CalledProcessError."""
    toolchain = ("tests/lab/lab", "toolchain", "--kernel", "6.12", "--", _MAKE % " ".join(BASELINES))
    made = subprocess.run(toolchain, check=True, cwd=ROOT, input=_sources(), stdout=subprocess.PIPE)
    (ROOT / BUILT).mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as tar:
        for key in BASELINES:
            module = tar.extractfile(f"{key}.ko")
            assert module is not None, "not a file"
            (ROOT / BUILT / f"{key}.ko").write_bytes(module.read())
