# SPDX-License-Identifier: Apache-2.0
"""Makes `tests.sched` and the compiled core importable, whatever was installed."""

import importlib
import sys
from pathlib import Path

from hypothesis import Phase, settings

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


def build_core_if_missing() -> None:
    """Build it in place unless the wheel brought it."""
    try:
        importlib.import_module("vgpumgr.sched.core")
    except ImportError:
        build = importlib.import_module("vgpumgr.sched._build")
        build.build(ROOT / "vgpumgr" / "sched")


build_core_if_missing()

# For test_mutations.py: whether a fault is found matters, not its smallest example.
settings.register_profile("mutation", deadline=None, database=None, derandomize=True, phases=[Phase.generate])
