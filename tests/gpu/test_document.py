# SPDX-License-Identifier: Apache-2.0
"""The document with the experiments' results, and the page that describes it."""

import contextlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.evidence import __main__ as evidence
from tests.gpu.evidence import device, document, models
from tests.gpu.evidence.bench import Bench, described
from tests.gpu.evidence.live import t9
from tests.gpu.fakerm.fake import FakeRm
from vgpumgr.errors import ProbeRefusedError
from vgpumgr.gpu import shares
from vgpumgr.gpu.discovery import Gpu, GpuProcess
from vgpumgr.gpu.duel import Rig, RigError
from vgpumgr.gpu.shares import Effort

DOCS = Path(__file__).resolve().parents[2] / "docs" / "evidence"
EFFORT = Effort(repeats=3, seconds=0.3)


def measured(monkeypatch: pytest.MonkeyPatch, t1: str) -> dict[str, Any]:
    """Return the document of a fake rig with given results of the shares. T9 is the only other test."""
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


def test_one_that_breaks_off_costs_none_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_: Bench) -> dict[str, Any]:
        raise RigError("load_failed", "tenant A: gone")

    def missing(_: Bench) -> dict[str, Any]:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(shares, "run", lambda *_, **__: {"T1": described("pass", "so it is", {}, [])})
    monkeypatch.setattr(document, "TESTS", {"T3": breaks, "T9": missing, "models": models.models})
    kept: list[dict[str, Any]] = []
    with FakeRm() as fake:
        found = document.measure(fake.rig, effort=EFFORT, kept=kept.append)
    assert found["tests"]["T3"] == described("not_run", "it broke off: load_failed: tenant A: gone", {}, [])
    assert found["tests"]["T9"]["verdict"] == found["tests"]["models"]["verdict"] == "not_run"
    assert [list(before["tests"]) for before in kept] == [["T1"], ["T1", "T3"], ["T1", "T3", "T9"]]


class OneGpu:
    """The management library's view of one GPU, which others may use."""

    def __init__(self, *others: GpuProcess) -> None:
        self.others = others

    def gpus(self) -> list[Gpu]:
        names = {"uuid": "GPU-1", "name": "Fake GPU", "address": "0000:3b:00.0", "driver": "580.142"}
        return [Gpu(index=0, **names, mig=False, compute_mode=0, virtualization=0)]

    def check(self, _: Gpu) -> None:
        pass

    def processes(self, _: Gpu) -> list[GpuProcess]:
        return list(self.others)


def test_the_document_names_the_gpu_and_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "opened", lambda: contextlib.nullcontext(OneGpu()))
    monkeypatch.setattr(shares, "run", lambda *_, **__: {"T1": described("fail", "so it is", {}, [])})
    with FakeRm() as fake:
        found = device.on_device(None, effort=EFFORT, told=print, rig=fake.rig)
    assert found["uuid"] == "GPU-1"
    assert re.fullmatch("([0-9a-f]{40}[+]?)?", found["commit"])


def test_a_gpu_that_others_used_meanwhile_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    other = GpuProcess(pid=1, kind="compute", name="miner", user="eve")
    monkeypatch.setattr(device, "opened", lambda: contextlib.nullcontext(OneGpu(other)))
    monkeypatch.setattr(shares, "run", lambda *_, **__: {"T1": described("fail", "so it is", {}, [])})
    with FakeRm() as fake, pytest.raises(ProbeRefusedError, match="miner"):
        device.on_device("GPU-1", effort=EFFORT, told=print, rig=fake.rig)


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["evidence", "--output", "/nowhere/h200.json"])
    monkeypatch.setattr(evidence, "on_device", lambda *_, **__: pytest.fail("it was measured"))
    with pytest.raises(SystemExit) as ended:
        evidence.main()
    assert ended.value.code == 2
    assert "/nowhere/h200.json" in capsys.readouterr().err


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
    rows = re.findall(r"^\| (T\d+|models)\b.*\| not measured \|", (DOCS / "template.md").read_text(), re.M)
    assert set(rows) == everything


@pytest.mark.parametrize(
    "path", sorted(set(DOCS.glob("*.json")) - set(DOCS.glob("*-probe.json"))), ids=lambda p: p.stem
)
def test_a_page_has_the_verdicts_of_its_document(path: Path) -> None:
    measured = json.loads(path.read_text())
    assert measured["rig"] == "device"
    page = path.with_suffix(".md").read_text()
    rows = re.findall(r"^\| (T\d+|models)\b[^|]*\| ([a-z ]+) \|", page, re.M)
    assert {name for name, _ in rows} == set(measured["tests"])
    for name, verdict in rows:
        assert verdict.replace(" ", "_") == measured["tests"][name]["verdict"], name
    assert measured["uuid"] in page
    assert f"| {measured['gpu']} | {measured['driver']} |" in (DOCS / "README.md").read_text()
