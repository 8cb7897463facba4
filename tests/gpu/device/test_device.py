# SPDX-License-Identifier: Apache-2.0
"""All experiments on the GPU of this machine. What it does is evidence, not right or wrong; the rig must be right."""

import json
from pathlib import Path

import pytest

from tests.gpu.evidence.document import identify, measure
from vgpumgr.gpu.duel import Rig, RigError
from vgpumgr.gpu.shares import Effort

DOCUMENT = Path(__file__).resolve().parents[3] / "build" / "figures" / "gpu-evidence.json"


@pytest.mark.long
def test_the_gpu_of_this_machine_is_measured() -> None:
    try:
        identify(Rig())
    except RigError as error:
        if error.code == "cuda_missing":
            pytest.skip(f"no GPU with NVIDIA's driver is here: {error.detail}")
        raise
    document = measure(Rig(), effort=Effort(repeats=5, seconds=4.0), told=print)
    DOCUMENT.parent.mkdir(parents=True, exist_ok=True)
    DOCUMENT.write_text(json.dumps(document, indent=1) + "\n")
    for name, test in document["tests"].items():
        print(f"{name:7} {test['verdict']:12} {test['reason']}")
    assert document["tests"]["T1"]["verdict"] == "pass"
