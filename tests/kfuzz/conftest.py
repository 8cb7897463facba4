# SPDX-License-Identifier: Apache-2.0
"""Makes `tests.kfuzz` importable."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
