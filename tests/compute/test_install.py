# SPDX-License-Identifier: Apache-2.0
"""`make -C compute install` puts all programs where the command line, the agent and the runtime look for them."""

import os
import subprocess
import sys
from pathlib import Path

from vgpumgr.broker.places import programs

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_installed_is_what_is_looked_for(tmp_path: Path) -> None:
    command = ["make", "-s", "-C", str(ROOT / "compute"), "install", f"PYTHON={sys.executable}"]
    subprocess.run([*command, f"DESTDIR={tmp_path}"], check=True, capture_output=True)
    installed = tmp_path / "usr/lib/vgpumgr"
    assert programs((installed,)).broker == installed / "vgpu-broker"
    made = {path.name for path in (ROOT / "build/compute").iterdir() if os.access(path, os.X_OK) and path.is_file()}
    assert made <= {path.name for path in installed.iterdir()}
    assert "vgpu-executor" in made
