# SPDX-License-Identifier: Apache-2.0
"""Which GPUs exist and which may be measured, by the real pynvml on a library with chosen answers."""

import os
import pwd
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.nvml import H200, L4, FakeNvml, gpu
from vgpumgr.errors import ProbeRefusedError
from vgpumgr.gpu import discovery
from vgpumgr.gpu.discovery import Gpu, chosen, opened
from vgpumgr.gpu.probe import BRANCHES, Watch
from vgpumgr.gpu.refusals import Refusal

FROZEN = {
    "probe.binding_missing",
    "probe.no_driver",
    "probe.version_mismatch",
    "probe.not_permitted",
    "probe.nvml_failed",
    "probe.no_gpu",
    "probe.gpu_unknown",
    "probe.gpu_lost",
    "probe.busy",
    "probe.mig",
    "probe.compute_mode",
    "probe.virtualised",
    "probe.driver_unknown",
    "probe.cuda_missing",
    "probe.shim_missing",
    "probe.shim_blind",
    "probe.load_failed",
}


def refused(pynvml: Any, *names: str) -> ProbeRefusedError:
    with pytest.raises(ProbeRefusedError) as caught:
        check_all(pynvml, names)
    return caught.value


def check_all(pynvml: Any, names: Sequence[str]) -> None:
    with opened(pynvml) as nvml:
        for one in chosen(nvml.gpus(), names):
            nvml.check(one)


def test_codes_are_frozen() -> None:
    assert set(Refusal) == FROZEN


def test_every_code_is_documented() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/probe-gpu.md").read_text()
    assert [code for code in Refusal if f"`{code}`" not in page] == []


def test_the_known_branches_are_those_of_the_shim() -> None:
    root = Path(__file__).resolve().parents[3]
    header = (root / "vgpumgr/gpu/native/rm_abi.h").read_text()
    first, last = (int(re.search(rf"RM_MAJOR_{end} (\d+)", header)[1]) for end in ("FIRST", "LAST"))  # type: ignore[index]
    assert range(first, last + 1) == BRANCHES
    assert f"branches {first} to {last}" in (root / "docs/probe-gpu.md").read_text()


def test_a_gpu_is_described(pynvml: Any, fake_nvml: FakeNvml) -> None:
    fake_nvml.says("driver 580.142", gpu(), gpu(L4, bus=0xAF, name="NVIDIA L4"))
    with opened(pynvml) as nvml:
        first, second = nvml.gpus()
        nvml.check(first)
    assert first == Gpu(
        index=0, uuid=H200, name="NVIDIA H200", address="0000:3b:00.0", driver="580.142", mig=False, compute_mode=0,
        virtualization=0,
    )  # fmt: skip
    assert (second.index, second.uuid, second.name, second.address) == (1, L4, "NVIDIA L4", "0000:af:00.0")


def test_it_is_closed_again_also_after_a_refusal(pynvml: Any, fake_nvml: FakeNvml) -> None:
    fake_nvml.adds("lost 0")
    refused(pynvml)
    assert fake_nvml.calls[-1] == "nvmlShutdown"
    assert fake_nvml.calls.count("nvmlInitWithFlags") == fake_nvml.calls.count("nvmlShutdown") == 1


def test_only_getters_are_called(pynvml: Any, fake_nvml: FakeNvml) -> None:
    fake_nvml.adds("process 0 compute 1")
    refused(pynvml)
    others = [name for name in fake_nvml.calls if not name.startswith(("nvmlDeviceGet", "nvmlSystemGet"))]
    assert set(others) == {"nvmlInitWithFlags", "nvmlShutdown"}


def test_the_log_would_tell_of_a_setter(pynvml: Any, fake_nvml: FakeNvml) -> None:
    with opened(pynvml):
        pynvml.nvmlDeviceSetPersistenceMode(pynvml.nvmlDeviceGetHandleByIndex(0), 1)
    assert "nvmlDeviceSetPersistenceMode" in fake_nvml.calls


@pytest.mark.parametrize(
    ("says", "code", "word"),
    [
        (["init 9"], Refusal.NO_DRIVER, "modprobe"),
        (["init 18"], Refusal.VERSION_MISMATCH, "different releases"),
        (["init 4"], Refusal.NOT_PERMITTED, "root"),
        (["init 999"], Refusal.NVML_FAILED, "opening NVML"),
        (["driver 1"], Refusal.NO_GPU, "no GPU"),
        (["driver 1", gpu(), "lost 0"], Refusal.GPU_LOST, "GPU 0"),
        (["driver 1", gpu(), "fail nvmlDeviceGetUUID 16"], Refusal.GPU_LOST, "reset"),
        (["driver 1", gpu(), "fail nvmlDeviceGetName 4"], Refusal.NOT_PERMITTED, "GPU 0"),
        (["driver 1", gpu(), "fail nvmlSystemGetDriverVersion 999"], Refusal.NVML_FAILED, "listing"),
        (["driver 1", gpu(), "fail nvmlDeviceGetMigMode 999"], Refusal.NVML_FAILED, "GPU 0"),
        (["driver 1", gpu(mig="1")], Refusal.MIG, H200),
        (["driver 1", gpu(mig="2")], Refusal.MIG, "after a reset"),
        (["driver 1", gpu(mode="3")], Refusal.COMPUTE_MODE, "exclusive"),
        (["driver 1", gpu(mode="2")], Refusal.COMPUTE_MODE, "prohibited"),
        (["driver 1", gpu(virtualization="2")], Refusal.VIRTUALISED, "vGPU"),
        (["driver 1", gpu(virtualization="3")], Refusal.VIRTUALISED, "vGPU"),
        (["driver 1", gpu(), "fail nvmlDeviceGetComputeRunningProcesses_v3 4"], Refusal.NOT_PERMITTED, "processes"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_code(
    pynvml: Any, fake_nvml: FakeNvml, says: list[str], code: Refusal, word: str
) -> None:
    fake_nvml.says(*says)
    error = refused(pynvml)
    assert error.code == code
    assert word in str(error)


def test_what_a_small_gpu_knows_nothing_of_is_no_obstacle(pynvml: Any, fake_nvml: FakeNvml) -> None:
    fake_nvml.says(
        "driver 580.142",
        gpu(mig="-", mode="-", virtualization="-"),
        "fail nvmlDeviceGetMPSComputeRunningProcesses_v3 3",
    )
    with opened(pynvml) as nvml:
        nvml.check(nvml.gpus()[0])


def test_a_gpu_passed_through_is_a_whole_one(pynvml: Any, fake_nvml: FakeNvml) -> None:
    fake_nvml.says("driver 580.142", gpu(virtualization="1"))
    with opened(pynvml) as nvml:
        nvml.check(nvml.gpus()[0])


@pytest.mark.parametrize("kind", ["compute", "graphics", "mps"])
def test_a_busy_gpu_is_refused_naming_whose_process(pynvml: Any, fake_nvml: FakeNvml, kind: str) -> None:
    me, user = os.getpid(), pwd.getpwuid(os.getuid()).pw_name
    fake_nvml.adds(f"process 0 {kind} {me}", "process 0 compute 4194304")
    error = refused(pynvml)
    assert error.code == Refusal.BUSY
    assert f"pid {me} (" in str(error)
    assert f"user {user}, {'MPS' if kind == 'mps' else kind})" in str(error)
    assert "pid 4194304 (?, user ?, compute)" in str(error)  # the process is gone or in another PID namespace


def test_a_process_of_another_gpu_does_not_count(pynvml: Any, fake_nvml: FakeNvml) -> None:
    fake_nvml.says("driver 580.142", gpu(), gpu(L4), "process 1 compute 1")
    with opened(pynvml) as nvml:
        nvml.check(nvml.gpus()[0])
    assert refused(pynvml, L4).code == Refusal.BUSY


def test_our_own_processes_do_not_count(pynvml: Any, fake_nvml: FakeNvml) -> None:
    fake_nvml.adds("process 0 compute 4194303", "process 0 compute 4194304")
    with opened(pynvml) as nvml:
        (found,) = nvml.gpus()
        nvml.check(found, ours=[4194303, 4194304])
        with pytest.raises(ProbeRefusedError, match="pid 4194304"):
            nvml.check_idle(found, ours=[4194303])


def test_gpus_are_meant_by_index_or_uuid_each_once(pynvml: Any, fake_nvml: FakeNvml) -> None:
    fake_nvml.says("driver 580.142", gpu(), gpu(L4))
    with opened(pynvml) as nvml:
        gpus = nvml.gpus()
    assert chosen(gpus, []) == gpus
    assert chosen(gpus, [L4, "1", "0"]) == [gpus[1], gpus[0]]
    with pytest.raises(ProbeRefusedError, match=f"no GPU '2'; known: index 0 = {H200}, index 1 = {L4}") as caught:
        chosen(gpus, ["2"])
    assert caught.value.code == Refusal.GPU_UNKNOWN


def test_a_lost_gpu_is_listed_and_refused(pynvml: Any, fake_nvml: FakeNvml) -> None:
    fake_nvml.says("driver 580.142", gpu(), gpu(L4), "lost 0")
    with opened(pynvml) as nvml:
        lost, fit = nvml.gpus()
        nvml.check(fit)
        with pytest.raises(ProbeRefusedError, match="GPU 0: it has fallen off the bus"):
            nvml.check(lost)
    with pytest.raises(ProbeRefusedError, match=f"known: index 0 = \\?, index 1 = {L4}"):
        chosen([lost, fit], [H200])


def test_what_the_library_says_is_not_said_again(pynvml: Any, fake_nvml: FakeNvml) -> None:
    fake_nvml.says("init 12")
    with pytest.raises(ProbeRefusedError) as caught, opened(pynvml):
        pass
    assert str(caught.value) == "opening NVML: libnvidia-ml.so.1 is missing; install the driver"


def test_nobody_looking_is_never_silent(pynvml: Any, fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(pynvml) as nvml:
        (one,) = nvml.gpus()

        def broken(_: Gpu) -> Any:
            raise UnicodeDecodeError("utf-8", b"", 0, 1, "what the library said")

        monkeypatch.setattr(nvml, "processes", broken)
        with Watch(nvml, one) as watch:
            pass
        with pytest.raises(ProbeRefusedError, match="UnicodeDecodeError") as caught:
            watch.check()
    assert caught.value.code == Refusal.NVML_FAILED


def test_without_the_binding_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(discovery.importlib, "import_module", missing)
    with pytest.raises(ProbeRefusedError, match="extra `agent`") as caught, opened():
        pass
    assert caught.value.code == Refusal.BINDING_MISSING
