# SPDX-License-Identifier: Apache-2.0
"""Compiles the core from the present sources and makes it and `tests.sched` importable."""

import importlib
import importlib.util
import sys
from pathlib import Path

from hypothesis import Phase, settings

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


def build_core_if_stale() -> None:
    """Compile the core in place unless the importable one is as new as its sources."""
    build = importlib.import_module("vgpumgr.sched._build")
    built = importlib.util.find_spec("vgpumgr.sched._core")
    sources = [ROOT / "vgpumgr/sched/_build.py", *(ROOT / build.CORE).glob("*.[ch]")]
    newest = max(source.stat().st_mtime for source in sources)
    if built is None or built.origin is None or Path(built.origin).stat().st_mtime < newest:
        build.build(ROOT / "vgpumgr" / "sched")
        importlib.invalidate_caches()


build_core_if_stale()

# For test_mutations.py: it only matters whether a fault is found, not its smallest example.
settings.register_profile("mutation", deadline=None, database=None, derandomize=True, phases=[Phase.generate])
