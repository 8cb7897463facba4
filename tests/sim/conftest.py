# SPDX-License-Identifier: Apache-2.0
"""Compiles the simulator's engine from the present sources and makes it importable."""

import importlib
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


def build_engine_if_stale() -> None:
    """Compile the engine in place unless the importable one is as new as its sources."""
    importlib.import_module("tests.sched.conftest")  # do the same for the core
    build = importlib.import_module("vgpumgr.sim._build")
    built = importlib.util.find_spec("vgpumgr.sim._native")
    core = ROOT / build.CORE_BUILD["CORE"]
    sources = [
        *(ROOT / "vgpumgr").glob("s*/_build.py"),
        *core.glob("*.[ch]"),
        *(ROOT / build.NATIVE).glob("*.[ch]"),
    ]
    newest = max(source.stat().st_mtime for source in sources)
    if built is None or built.origin is None or Path(built.origin).stat().st_mtime < newest:
        build.build(ROOT / "vgpumgr" / "sim")
        importlib.invalidate_caches()


build_engine_if_stale()
