# SPDX-License-Identifier: Apache-2.0
"""All experiments on the GPU of this machine. The GPU's behaviour is evidence and cannot fail a test; the rig can."""

import ctypes
import json
from pathlib import Path

import pytest

from tests.gpu.evidence.device import on_device
from vgpumgr.gpu.cuda import LIBRARY
from vgpumgr.gpu.shares import Effort

DOCUMENT = Path(__file__).resolve().parents[3] / "build" / "figures" / "gpu-evidence.json"


def why_not() -> str | None:
    """Return what is missing. A GPU that is present but does not work is a failure and not a reason to skip."""
    if not Path("/dev/nvidiactl").exists():
        return "there is no /dev/nvidiactl"
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        return str(error)
    return None


@pytest.mark.long
def test_the_gpu_of_this_machine_is_measured() -> None:
    if (missing := why_not()) is not None:
        pytest.skip(f"no GPU with NVIDIA's driver is here: {missing}")
    document = on_device(None, effort=Effort(repeats=5, seconds=4.0), told=print)
    DOCUMENT.parent.mkdir(parents=True, exist_ok=True)
    DOCUMENT.write_text(json.dumps(document, indent=1) + "\n")
    for name, test in document["tests"].items():
        print(f"{name:7} {test['verdict']:12} {test['reason']}")
    assert document["tests"]["T1"]["verdict"] == "pass"
