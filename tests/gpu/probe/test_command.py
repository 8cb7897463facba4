# SPDX-License-Identifier: Apache-2.0
"""The command from end to end: real pynvml on a fake library, and real processes under the shim on a fake driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.gpu.fakerm.fake import FakeRm
from tests.gpu.fakerm.gpu import Behaviour
from tests.gpu.nvml import H200, L4, FakeNvml, gpu
from tests.gpu.probe.measured import measured
from vgpumgr.cli.main import main
from vgpumgr.cli.session import Session
from vgpumgr.gpu import probe as probe_module
from vgpumgr.gpu import shares
from vgpumgr.gpu.abi import DISABLE_CHANNELS, GET_TIMESLICE, SET_PREEMPTION_MODE, SET_TIMESLICE
from vgpumgr.gpu.duel import Rig, RigError
from vgpumgr.probe_results import switch_cost_us

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "docs/probe-gpu.schema.json").read_text())
QUICK = ("--repeats", "3", "--seconds", "1")
# What a probe may send to the driver besides making and freeing objects: controls of its own channel groups and
# channels. libcuda by itself asks for a preemption mode of each of its channels.
PER_GROUP = {0xA06C0101, 0xA06C0102, DISABLE_CHANNELS, SET_TIMESLICE, GET_TIMESLICE, 0xA06C0106, SET_PREEMPTION_MODE}


class Command:
    """Runs `vgpumgr host probe-gpu` in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture
        self.rig: Rig | None = None
        self.root = Path("/nonexistent")

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._capture.readouterr()
        status = main(["host", "probe-gpu", *arguments], Session(rig=self.rig, root=self.root))
        said = self._capture.readouterr()
        return status, said.out, said.err

    def json(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        status, out, _ = self(*arguments, "--json")
        document: dict[str, Any] = json.loads(out)
        jsonschema.validate(document, SCHEMA)
        return status, document


@pytest.fixture
def command(pynvml: Any, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def fakerm(command: Command) -> Iterator[Callable[..., FakeRm]]:
    """Makes the command's GPU a fake one."""
    made: list[FakeRm] = []

    def make(behaviour: Behaviour | None = None, **options: Any) -> FakeRm:
        fake = FakeRm(behaviour, **options).__enter__()
        made.append(fake)
        command.rig = fake.rig
        return fake

    yield make
    for fake in made:
        fake.__exit__(None, None, None)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the probe to few settings, because processes start slowly."""
    monkeypatch.setattr(shares, "RIG", shares.RIG[1:])
    monkeypatch.setattr(shares, "HONOUR", (shares.HONOUR[0], shares.HONOUR[3]))
    monkeypatch.setattr(shares, "SWITCHING", (shares.SWITCHING[0], shares.SWITCHING[-1]))


def results(monkeypatch: pytest.MonkeyPatch, *, cost_is_told: bool = True, **verdicts: Any) -> None:
    """Replace the tests by these results, without measuring."""

    def run(rig: Rig, **_: Any) -> dict[str, Any]:
        rig.on_child(4194303)
        found = measured(**verdicts)
        low = 75.0 if cost_is_told else -1.0
        found["T10"]["figures"] = {"switch_cost_us": {"mean": 80.0, "low": low, "high": 85.0, "count": 5}}
        return found

    monkeypatch.setattr(probe_module.shares, "run", run)
    monkeypatch.setattr(probe_module.gate, "run", lambda *_, **__: measured()["T11"])


def check_honoured(one: dict[str, Any]) -> None:
    assert one["conclusive"]
    passed = dict.fromkeys(("T1", "T2", "T4", "T10", "T11"), "pass")
    assert {name: test["verdict"] for name, test in one["tests"].items()} == passed
    assert one["granularity"]["finer_than_us"] <= 1000
    assert one["gate"] == "yes"
    assert one["switch_cost_us"]["mean"] == pytest.approx(100, abs=20)
    uses = {(word["member"], word["word"]): word["use"] for word in one["enforcement"]}
    assert uses["enforced_by", "firmware"] == "if"
    assert uses["semantics", "weight"] == "yes"


@pytest.mark.usefixtures("few")
def test_a_gpu_that_honours_timeslices_and_nothing_else_is_set(
    command: Command, fakerm: Callable[..., FakeRm], fake_nvml: FakeNvml
) -> None:
    fake = fakerm(Behaviour(honour="yes"))
    status, found = command.json(*QUICK)
    assert status == 0
    check_honoured(found["gpus"][0])
    assert {call for call in fake_nvml.calls if not call.startswith(("nvmlDeviceGet", "nvmlSystemGet"))} == {
        "nvmlInitWithFlags",
        "nvmlShutdown",
    }
    controls = {entry["cmd"] for entry in fake.log() if "cmd" in entry}
    assert SET_TIMESLICE in controls
    assert controls <= PER_GROUP


@pytest.mark.long
def test_the_whole_probe(command: Command, fakerm: Callable[..., FakeRm]) -> None:
    fakerm(Behaviour(honour="yes"))
    status, found = command.json("--repeats", "3", "--seconds", "1")
    assert status == 0
    check_honoured(found["gpus"][0])


@pytest.mark.usefixtures("few")
def test_a_gpu_that_ignores_them(command: Command, fakerm: Callable[..., FakeRm]) -> None:
    fakerm(Behaviour(honour="ignore"))
    status, out, _ = command(*QUICK)
    assert status == 0
    assert out.splitlines()[1:3] == ["timeslices: ignored", "gate: yes"]
    assert "\ngate: closing takes " in out
    assert "T11 pass another process can stop and resume a tenant" in " ".join(out.split())
    assert "T2 fail shares follow timeslices shares do not follow timeslices" in " ".join(out.split())
    assert "timeslices are not honoured (T2)" in out
    assert "inconclusive" not in out


@pytest.mark.usefixtures("few")
def test_a_driver_that_refuses_is_said_to(command: Command, fakerm: Callable[..., FakeRm]) -> None:
    fakerm(Behaviour(honour="yes"), refuse_timeslice=True)
    status, found = command.json(*QUICK)
    (one,) = found["gpus"]
    assert (status, one["timeslices"], one["switch_cost_us"]) == (8, "unknown", None)
    assert one["tests"]["T2"]["reason"].startswith("the driver refused: 2048/6144 us: ")
    uses = {(word["member"], word["word"]): word["use"] for word in one["enforcement"]}
    assert uses["scope", "gpu"] == uses["applied", "timeslice_us"] == "unknown"


def test_an_unfair_rig_is_inconclusive(command: Command, fakerm: Callable[..., FakeRm]) -> None:
    fakerm(Behaviour(turns_of_first=2))
    status, found = command.json(*QUICK)
    assert status == 8
    (one,) = found["gpus"]
    assert not one["conclusive"]
    assert one["tests"]["T1"]["verdict"] == "fail"
    assert {one["tests"][name]["verdict"] for name in ("T2", "T4", "T10")} == {"not_run"}
    assert {word["use"] for word in one["enforcement"] if word["member"] in ("applied", "scope", "semantics")} == {
        "unknown"
    }


def test_what_is_inconclusive_is_said_to_people(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    results(monkeypatch, t2="inconclusive", honoured="unknown")
    status, out, _ = command()
    assert status == 8
    assert "inconclusive: the measurements do not decide; do not rely on them" in out


@pytest.mark.parametrize(
    ("told", "line"),
    [(True, "switch cost: 80 us, 75 to 85"), (False, "switch cost: not distinguishable from 0; at most 85 us")],
)
def test_a_switch_cost_is_told_from_none(
    command: Command, monkeypatch: pytest.MonkeyPatch, told: bool, line: str
) -> None:
    results(monkeypatch, cost_is_told=told)
    status, out, _ = command()
    assert status == 0
    assert out.splitlines()[1] == "timeslices: honoured"
    assert line in out.splitlines()


def test_what_was_measured_is_kept_where_there_is_an_agent(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results(monkeypatch)
    command.root = tmp_path
    assert "kept" not in command()[2]
    kept = tmp_path / "var/lib/vgpumgr/probes"
    kept.parent.mkdir(parents=True)
    status, _, said = command()
    assert status == 0
    [path] = kept.iterdir()
    assert f"stored in {path}" in said
    assert switch_cost_us(kept, path.stem) == 80

    path.unlink()
    kept.rmdir()
    kept.write_text("in the way")
    status, out, said = command()
    assert status == 0
    assert "switch cost: 80 us, 75 to 85" in out.splitlines()
    assert "not stored for the agent" in said


def test_one_sentence_is_said_once(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    results(monkeypatch, t1="fail", t2="not_run")
    _, out, _ = command()
    assert out.count("equal tenants did not get equal shares (T1), so nothing can be concluded") == 1


def test_an_unknown_driver_is_refused(command: Command, fakerm: Callable[..., FakeRm]) -> None:
    fakerm(version="999.1")
    status, out, err = command(*QUICK)
    assert (status, out) == (1, "")
    assert err.splitlines()[-1].startswith("vgpumgr: probe.driver_unknown: GPU 0 (" + H200)
    assert "999.1" in err
    assert "known are the branches 515 to 610" in err


@pytest.mark.parametrize("code", ["shim_missing", "cuda_missing", "driver_unknown", "shim_blind", "load_failed"])
def test_every_reason_of_the_rig_has_its_code(command: Command, monkeypatch: pytest.MonkeyPatch, code: Any) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RigError(code, "something was missing")

    monkeypatch.setattr(probe_module.shares, "run", fails)
    status, found = command.json()
    assert status == 1
    refused = found["gpus"][0]["refused"]
    assert refused["code"] == f"probe.{code}"
    assert refused["detail"].startswith(f"GPU 0 ({H200}): something was missing")


def test_without_cuda_that_is_the_reason(command: Command) -> None:
    """No rig is faked: the processes themselves look for the driver's library."""
    status, _, err = command(*QUICK)
    assert status == 1
    assert "probe.cuda_missing" in err


def test_a_busy_gpu_is_a_conflict_naming_whose(command: Command, fake_nvml: FakeNvml) -> None:
    fake_nvml.adds(f"process 0 compute {os.getpid()}")
    status, _, err = command()
    assert status == 4
    assert "probe.busy" in err
    assert f"is in use: pid {os.getpid()} (" in err


def test_who_comes_while_it_is_measured_makes_it_void(
    command: Command, fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(rig: Rig, **_: Any) -> dict[str, Any]:
        rig.on_child(4194303)
        fake_nvml.adds("process 0 compute 4194303", "process 0 compute 4194304")
        return measured()

    monkeypatch.setattr(probe_module.shares, "run", run)
    status, found = command.json()
    assert status == 4
    refused = found["gpus"][0]["refused"]
    assert refused["code"] == "probe.busy"
    assert "4194304" in refused["detail"]
    assert "4194303" not in refused["detail"]


def test_a_gpu_that_is_lost_while_it_is_measured_is_not_judged(
    command: Command, fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(rig: Rig, **_: Any) -> dict[str, Any]:
        fake_nvml.adds("lost 0")
        raise RigError("load_failed", "cuEventSynchronize: CUDA_ERROR_UNKNOWN")

    monkeypatch.setattr(probe_module.shares, "run", run)
    status, found = command.json()
    assert (status, found["gpus"][0]["refused"]["code"]) == (1, "probe.gpu_lost")


def test_several_gpus_are_each_told_of(command: Command, fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.says("driver 580.142", gpu(), gpu(L4, mig="1"))
    results(monkeypatch)
    status, found = command.json()
    assert status == 1
    assert [one["refused"] and one["refused"]["code"] for one in found["gpus"]] == [None, "probe.mig"]
    status, out, err = command()
    assert status == 1
    assert H200 in out
    assert L4 not in out
    assert err.count("vgpumgr: ") == err.count("probe.mig") == 1
    assert command("--gpu", "0")[0] == 0
    assert command("--gpu", "2")[0] == 3


def test_a_failure_of_the_library_is_a_document_too(command: Command, fake_nvml: FakeNvml) -> None:
    fake_nvml.says("init 18")
    status, out, err = command("--json")
    assert (status, err) == (1, "")
    document = json.loads(out)
    jsonschema.validate(document, SCHEMA)
    assert document["gpus"] == []
    assert document["refused"]["code"] == "probe.version_mismatch"
    assert "different releases" in document["refused"]["detail"]


def test_a_gpu_that_is_lost_is_no_obstacle_to_another(
    command: Command, fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.says("driver 580.142", gpu(), gpu(L4), "lost 0")
    results(monkeypatch)
    assert command.json("--gpu", "1")[0] == 0
    status, found = command.json()
    assert status == 1
    assert [one["refused"] and one["refused"]["code"] for one in found["gpus"]] == ["probe.gpu_lost", None]


def test_how_far_it_is_is_said(command: Command, fakerm: Callable[..., FakeRm]) -> None:
    fakerm(Behaviour(turns_of_first=2))
    said = command(*QUICK)[2].splitlines()
    assert said[0].startswith("1 of at most 45: T1, repeat 1 of 3: ")
    assert said[-1].startswith("6 of at most 45: T1, repeat 3 of 3: ")


def test_without_a_driver_the_program_says_so() -> None:
    """Like on a host without GPU: nothing is faked, and the real binding finds no library."""
    script = "from vgpumgr.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", script, "host", "probe-gpu"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.startswith("vgpumgr: probe.no_driver: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--repeats", "2"),
        ("--seconds", "0"),
        ("--seconds", "0.99"),
        ("--seconds", "nan"),
        ("--seconds", "inf"),
        ("--gpu", ""),
        ("--gpu", "-1"),
    ],
)
def test_bad_values_are_usage(command: Command, fake_nvml: FakeNvml, arguments: tuple[str, str]) -> None:
    status, out, err = command(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("vgpumgr: argument.invalid: ")
    assert arguments[0] in err
    assert "see `vgpumgr host probe-gpu --help`" in err
    assert fake_nvml.calls == []


def test_all_exit_statuses_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"], Session())
    assert "8 inconclusive, a target missed, or warnings only" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("path", sorted((ROOT / "docs/evidence").glob("*-probe.json")), ids=lambda path: path.stem)
def test_what_a_real_gpu_gave_fits_the_schema(path: Path) -> None:
    document = json.loads(path.read_text())
    jsonschema.validate(document, SCHEMA)
    assert [one["conclusive"] for one in document["gpus"]] == [True]
