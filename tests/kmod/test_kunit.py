# SPDX-License-Identifier: Apache-2.0
"""kmod/kunit: the parts of the module that only code in the kernel can test; needs a kernel with KUnit, like the debug
kernel."""

import re
import subprocess
from pathlib import Path

from tests.rig.gpu import Gpu
from tests.rig.kernel import lacking

MODULE = Path("/lab/vgpumgr_kunit.ko")
RESULTS = Path("/sys/kernel/debug/kunit")
SUITES = ("vgpu_memory", "vgpu_device", "vgpu_events", "vgpu_engine", "vgpu_processor")
RESULT = re.compile(r"^\s+(ok|not ok) \d+ (\w+)", re.M)
SOURCES = Path(__file__).resolve().parents[2] / "kmod" / "kunit"


def test_every_case_passes(gpu: Gpu) -> None:
    if not MODULE.exists():
        lacking("module of KUnit's cases: it is built for kernels with KUnit")
    subprocess.run(["insmod", MODULE], check=True, timeout=300)
    try:
        said = {suite: (RESULTS / suite / "results").read_text() for suite in SUITES}
    finally:
        subprocess.run(["rmmod", MODULE.stem], check=True, timeout=60)
    results = {name: word for text in said.values() for word, name in RESULT.findall(text)}
    cases = {name for path in SOURCES.glob("*_test.c") for name in re.findall(r"KUNIT_CASE\((\w+)\)", path.read_text())}

    assert {name for name, word in results.items() if word == "ok"} == cases, "\n".join(said.values())
    assert len(cases) > 20
