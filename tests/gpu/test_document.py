# SPDX-License-Identifier: Apache-2.0
"""The document that experiments end in, and the page that describes it."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.evidence import document, models
from tests.gpu.evidence.bench import Bench, described
from tests.gpu.evidence.live import t9
from tests.gpu.fakerm.fake import FakeRm
from vgpumgr.gpu import shares
from vgpumgr.gpu.duel import Rig, RigError
from vgpumgr.gpu.shares import Effort

DOCS = Path(__file__).resolve().parents[2] / "docs" / "evidence"
EFFORT = Effort(repeats=3, seconds=0.3)


def measured(monkeypatch: pytest.MonkeyPatch, t1: str) -> dict[str, Any]:
    """The document of a fake rig where the shares came out as told, and T9 is the only other test."""
    of_shares = {name: described(t1 if name == "T1" else "pass", "so it is", {}, []) for name in ("T1", "T2", "T10")}
    monkeypatch.setattr(shares, "run", lambda *_, **__: of_shares)
    monkeypatch.setattr(document, "TESTS", {"models": models.models, "T9": t9})
    with FakeRm() as fake:
        return document.measure(fake.rig, effort=EFFORT)


def test_it_names_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, "pass")
    assert {name: found[name] for name in ("schema", "rig", "gpu", "driver")} == {
        "schema": "vgpumgr.gpu-evidence/1",
        "rig": "fake",
        "gpu": "Fake GPU",
        "driver": "580.142",
    }
    assert list(found["tests"]) == ["T1", "T2", "T9", "T10", "models"]
    assert set(found["tests"]["T9"]["figures"]) == {"before", "after", "status"}


def test_nothing_is_said_where_equal_tenants_are_unequal(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, "fail")
    for name in ("T9", "models"):
        assert found["tests"][name] == described("not_run", "T1: so it is", {}, [])


def test_what_is_missing_is_said_and_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert models.models(Bench(Rig(kind="fake"), EFFORT))["reason"] == "a fake GPU runs no models"
    monkeypatch.setitem(sys.modules, "torch", None)
    result = models.models(Bench(Rig(), EFFORT))
    assert (result["verdict"], "PyTorch is not installed" in result["reason"]) == ("not_run", True)


def test_a_gpu_that_is_not_there_is_not_measured() -> None:
    with pytest.raises(RigError) as caught:
        document.measure(Rig(environment={"LD_LIBRARY_PATH": "/nowhere", "CUDA_VISIBLE_DEVICES": ""}), effort=EFFORT)
    assert caught.value.code == "cuda_missing"


def test_the_pages_know_every_test() -> None:
    everything = {"T1", "T2", "T4", "T10", *document.TESTS}
    assert set(re.findall(r"^\| (T\d+|models) \|", (DOCS / "README.md").read_text(), re.M)) == everything
    rows = re.findall(r"^\| (T\d+|models)\b.*\| not measured \|", (DOCS / "h200.md").read_text(), re.M)
    assert set(rows) == everything
