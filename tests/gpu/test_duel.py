# SPDX-License-Identifier: Apache-2.0
"""Competing tenants on the fake GPU: the measurements equal what the GPU did in virtual time."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.fakerm.fake import FakeRm
from tests.gpu.fakerm.gpu import Behaviour
from vgpumgr.gpu import abi, duel, load
from vgpumgr.gpu.duel import Rig, RigError, Tenant

ROUNDS = 2000
NOTHING = duel.Result(
    tenant="A",
    pid=1,
    rounds=1,
    start_ns=0,
    end_ns=1_000_000_000,
    done_ns=(),
    latency_us=(),
    shim=(),
    gpu="",
    wfi_statuses=(),
    mark_ns=(),
)


def compete(fake: FakeRm, a_us: int | None, b_us: int | None, seconds: float = 1.0) -> duel.Duel:
    return duel.run(
        fake.rig,
        [Tenant(name="A", rounds=ROUNDS, timeslice_us=a_us), Tenant(name="B", rounds=ROUNDS, timeslice_us=b_us)],
        seconds=seconds,
    )


def test_shares_follow_timeslices_that_are_honoured() -> None:
    with FakeRm() as fake:
        assert compete(fake, 2048, 6144).share("A") == pytest.approx(0.25, abs=0.01)


def test_shares_are_equal_where_timeslices_are_ignored_although_every_answer_was_ok() -> None:
    with FakeRm(Behaviour(honour="ignore")) as fake:
        result = compete(fake, 2048, 6144)
    assert result.share("A") == pytest.approx(0.5, abs=0.01)
    statuses = [entry["status"] for run in result.results for entry in run.shim if entry["event"] == "rewritten"]
    assert statuses == [0, 0]


@pytest.mark.parametrize("style", ["", "short", "xfer", "unsized", "short xfer unsized"])
def test_every_way_in_which_libcuda_calls_the_driver_is_understood(style: str) -> None:
    with FakeRm(style=style) as fake:
        result = compete(fake, 1024, 9216, seconds=0.5)
    assert result.share("A") == pytest.approx(0.1, abs=0.01)
    for run in result.results:
        assert [entry["asked_us"] for entry in run.shim if entry["event"] == "rewritten"] == [2048]


def test_the_same_run_gives_the_same_figures() -> None:
    figures = []
    for _ in range(2):
        with FakeRm() as fake:
            figures.append([len(result.done_ns) for result in compete(fake, 3000, 5000, seconds=0.5).results])
    assert figures[0] == figures[1]


def test_a_kernel_is_measured_where_nobody_competes() -> None:
    with FakeRm() as fake:
        alone = duel.run(fake.rig, [Tenant(name="A", kernel_us=3000)], seconds=0.2)
        with pytest.raises(ValueError, match="rounds"):
            duel.run(fake.rig, [Tenant(name="A"), Tenant(name="B")], seconds=0.2)
    # The first launch includes a switch, so the shortest of all launches counts.
    assert alone.results[0].rounds == 3000


@pytest.mark.parametrize(
    ("fake", "code"),
    [
        (FakeRm(version="999.10", cuda_version="999.10"), "driver_unknown"),
        (FakeRm(version="580.142", cuda_version="575.64.05"), "cuda_missing"),
        (FakeRm(dies_after_ns=200_000_000), "load_failed"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_word(fake: FakeRm, code: str) -> None:
    with fake, pytest.raises(RigError) as caught:
        compete(fake, 2048, 6144)
    assert caught.value.code == code


def test_without_libcuda_nothing_is_measured(tmp_path: Path) -> None:
    broken = tmp_path / "libcuda.so.1"
    broken.write_text("not a library")
    with pytest.raises(RigError) as caught:
        duel.run(Rig(environment={"LD_LIBRARY_PATH": str(tmp_path)}), [Tenant(name="A", rounds=1)], seconds=0.1)
    assert caught.value.code == "cuda_missing"


@pytest.mark.parametrize("inherited", [None, ":/nowhere"])
def test_modules_of_the_folder_it_is_run_in_are_not_a_tenants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inherited: str | None
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('json.py of the folder')")
    monkeypatch.chdir(tmp_path)
    if inherited is not None:
        monkeypatch.setenv("PYTHONPATH", inherited)
    with FakeRm() as fake:
        assert duel.run(fake.rig, [Tenant(name="A", rounds=ROUNDS)], seconds=0.05).rate("A") > 0


def test_settings_of_cuda_that_spoil_a_measurement_are_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("CUDA_DISABLE_PTX_JIT", "1")
    found: list[str] = []

    def look(pid: int) -> None:
        while not (environment := Path(f"/proc/{pid}/environ").read_text()):  # empty until the load is executed
            time.sleep(0.001)
        found.append(environment)

    with FakeRm() as fake:
        duel.run(replace(fake.rig, on_child=look), [Tenant(name="A", rounds=ROUNDS)], seconds=0.05)
    assert "CUDA_MPS_PIPE_DIRECTORY" in found[0]
    assert "CUDA_LAUNCH_BLOCKING" not in found[0]
    assert "CUDA_DISABLE_PTX_JIT" not in found[0]


def test_a_request_counts_when_it_was_due_however_late_it_was_done() -> None:
    waited = replace(NOTHING, done_ns=(150_000_000, 2_000_000_000), latency_us=(1000.0, 1_500_000.0))
    assert duel.Duel(results=[waited], seconds=1.0).latencies_us("A") == [1000.0, 1_500_000.0]


def test_where_no_request_was_due_there_is_no_latency() -> None:
    with pytest.raises(RigError, match="no request was due"):
        duel.Duel(results=[NOTHING], seconds=1.0).latencies_us("A")


def test_a_tenant_works_on_while_something_is_done_to_it() -> None:
    with FakeRm() as fake:
        tenants = [Tenant(name="A", rounds=ROUNDS, mark_at_s=0.25), Tenant(name="B", rounds=ROUNDS)]
        pids: list[int] = []
        result = duel.run(fake.rig, tenants, seconds=0.5, at_mark=lambda running: pids.append(running.pid))
    a = result.of("A")[0]
    assert pids == [a.pid]
    told_ns, went_on_ns = a.mark_ns
    assert a.start_ns < told_ns == went_on_ns < a.end_ns
    under_way = [
        done for done, waited in zip(a.done_ns, a.latency_us, strict=True) if done - waited * 1000 < told_ns < done
    ]
    assert len(under_way) == 4


def test_a_tenant_that_cannot_be_ended_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    real = duel.subprocess.Popen.communicate

    def hangs(process: Any, *arguments: Any, timeout: float | None = None, **options: Any) -> Any:
        real(process, *arguments, timeout=timeout, **options)
        raise duel.subprocess.TimeoutExpired("load", timeout or 0)

    monkeypatch.setattr(duel.subprocess.Popen, "communicate", hangs)
    with FakeRm() as fake:
        server = fake._server
        monkeypatch.setattr(server, "communicate", lambda **options: real(server, **options))
        with pytest.raises(RigError, match="did not end"):
            duel.run(fake.rig, [Tenant(name="A", rounds=ROUNDS)], seconds=0.05)


def test_unpreemptible_kernels_are_asked_for_on_every_subdevice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [
        {"event": "subdevice", "client": 1, "subdevice": 11},
        {"event": "subdevice", "client": 1, "subdevice": 12},
        {"event": "subdevice", "client": 2, "subdevice": 21},
        {"event": "channel", "fd": 5, "client": 1, "channel": 101},
        {"event": "channel", "fd": 5, "client": 3, "channel": 301},
    ]
    asked: list[tuple[int, int]] = []

    def answer(_: int, *, client: int, subdevice: int, channel: int, mode: int) -> int:
        asked.append((subdevice, channel))
        return subdevice

    monkeypatch.setattr(abi, "set_compute_preemption", answer)
    log = tmp_path / "log"
    log.write_text("".join(json.dumps(entry) + "\n" for entry in seen))
    assert load.ask_for_unpreemptible_kernels(log) == [11, 12]
    assert asked == [(11, 101), (12, 101)]


@pytest.mark.parametrize("wrong", [{"honour": "sometimes"}, {"turns_of_first": 0}, {"switch_ns": -1}])
def test_a_fake_gpu_does_only_what_it_knows(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Behaviour(**wrong)
