# SPDX-License-Identifier: Apache-2.0
"""GPUs that the host lists: the agent binds them, or reports why that did not help."""

from pathlib import Path
from typing import Any

import pytest
from vgpumgr_agent import udev
from vgpumgr_agent.attempts import Attempts
from vgpumgr_agent.helper import request
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.reconcile import BindGpu, bindings
from vgpumgr_agent.refused import Refused

from tests.agent.fakekernel import GPU, OTHER_GPU, FakeKernel, FakeSysfs
from tests.agent.host import VM, A, Host
from vgpumgr.control.listed import MENDABLE, Trouble, Unusable, listed, unusable
from vgpumgr.control.sysfs import HostPaths

CODES = {
    "gpus.unreadable",
    "gpu.malformed",
    "gpu.absent",
    "gpu.held",
    "module.missing",
    "gpu.unbound",
    "gpu.twice",
    "gpu.driverless",
    "gpu.unadopted",
    "gpu.engine",
    "gpu.open_to_all",
}


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait is needed: the played udev binds before a write to `uevent` returns."""
    monkeypatch.setattr("vgpumgr_agent.helper.operations._BIND_WAIT_S", 0)


def codes(kernel: FakeKernel) -> dict[str, str]:
    return {found.gpu: str(found.code) for found in unusable(FakeSysfs(HostPaths(kernel.root)))}


def driver(kernel: FakeKernel, gpu: str = GPU) -> str | None:
    return FakeSysfs(HostPaths(kernel.root)).driver(gpu)


def asked(kernel: FakeKernel) -> int:
    """How often udev was triggered."""
    return sum(entry[:2] == ("write", "uevent") for entry in kernel.log)


def attach(kernel: FakeKernel) -> str:
    return (kernel.paths.gpu(GPU) / "attach").read_text().strip()


def told(host: Host) -> list[str]:
    """The problems in the agent's last report."""
    return list(host.api.reports[-1].refusals)


def reported(host: Host) -> set[str]:
    return {gpu.address for gpu in host.api.reports[-1].gpus}


# ---- what is wrong with a listed GPU


def test_codes_are_frozen() -> None:
    assert {str(code) for code in Trouble} == CODES


def test_without_a_list_and_with_all_of_it_bound_nothing_is_wrong(kernel: FakeKernel) -> None:
    assert codes(kernel) == {}
    kernel.list_gpus("# Placed by vgpumgr's ansible role", GPU, "", GPU)
    kernel.hand_to(OTHER_GPU, None)
    (kernel.paths.gpu(GPU) / "attach").write_text("permit\n")
    assert listed(kernel.paths) == [GPU]
    assert codes(kernel) == {}


def test_each_trouble_has_its_code_and_says_what_to_do(kernel: FakeKernel) -> None:
    kernel.list_gpus(GPU, OTHER_GPU, "0000:99:00.0", " 0000:00:10.0")
    kernel.hand_to(OTHER_GPU, "nouveau")
    expected = {"0000:99:00.0": "gpu.absent", "' 0000:00:10.0'": "gpu.malformed", OTHER_GPU: "gpu.held"}
    assert codes(kernel) == {GPU: "gpu.open_to_all", **expected}
    kernel.hand_to(GPU, None)
    assert codes(kernel) == {GPU: "gpu.unbound", **expected}
    kernel.unload()
    kernel.hand_to(OTHER_GPU, "nouveau")
    assert codes(kernel) == {GPU: "module.missing", **expected}
    for found in unusable(FakeSysfs(HostPaths(kernel.root))):
        assert "\n" not in str(found)
        assert str(found).endswith(f"; {found.todo} ({found.code})")
    assert "nouveau" in next(
        str(found) for found in unusable(FakeSysfs(HostPaths(kernel.root))) if found.code is Trouble.HELD
    )


def test_a_list_that_cannot_be_read_is_named(kernel: FakeKernel) -> None:
    kernel.paths.listed_gpus.mkdir(parents=True)
    (found,) = unusable(FakeSysfs(HostPaths(kernel.root)))
    assert (found.gpu, found.code) == ("", Trouble.UNREADABLE)
    assert "Is a directory" in str(found)


# ---- when the agent tries something


def test_only_what_binding_may_mend_is_bound_and_when_it_is_due() -> None:
    found = [Unusable(gpu=str(code), code=code, found="", todo="") for code in Trouble]
    everything = frozenset(str(code) for code in Trouble)
    assert {action.gpu for action in bindings(found, due=everything)} == {str(code) for code in MENDABLE}
    assert bindings(found, due=frozenset({"gpu.unbound", "gpu.held"})) == [BindGpu("gpu.unbound")]
    assert bindings(found, due=frozenset()) == []


def test_attempts_come_at_once_and_then_less_and_less_often() -> None:
    now = 0.0
    attempts = Attempts(lambda: now)
    times = []
    while now < 300:
        if attempts.due(["x"]):
            times.append(now)
        now += 1
    assert times == [0, 5, 15, 35, 75, 135, 195, 255]
    assert attempts.due([]) == frozenset()
    assert attempts.due(["x"]) == {"x"}


@pytest.mark.parametrize(
    ("properties", "concerns"),
    [
        ({"SUBSYSTEM": "pci", "ACTION": "add"}, True),
        ({"SUBSYSTEM": "pci", "ACTION": "bind"}, True),
        ({"SUBSYSTEM": "pci", "ACTION": "unbind"}, True),
        ({"SUBSYSTEM": "pci", "ACTION": "remove"}, True),
        ({"SUBSYSTEM": "pci", "ACTION": "add", "SYNTH_UUID": "0"}, False),
        ({"SUBSYSTEM": "pci", "ACTION": "change"}, False),
        ({"SUBSYSTEM": "usb", "ACTION": "bind"}, False),
    ],
)
def test_events_of_pci_functions_wake_the_agent_but_not_those_it_asked_for(
    properties: dict[str, str], concerns: bool
) -> None:
    assert udev.concerns_binding(properties) is concerns


# ---- the agent


def test_a_listed_gpu_that_lost_its_driver_is_bound_and_closed_again(claimed: Host, kernel: FakeKernel) -> None:
    kernel.list_gpus(GPU)
    kernel.hand_to(GPU, None)
    claimed.reconcile()
    assert (driver(kernel), attach(kernel)) == ("vgpumgr", "permit")
    assert told(claimed) == []
    assert GPU in reported(claimed)
    claimed.start(A, vm=VM)


def test_a_module_that_is_not_loaded_is_loaded(claimed: Host, kernel: FakeKernel) -> None:
    """This happens before the first look at the host, which needs the GPUs."""
    kernel.list_gpus(GPU)
    kernel.unload()
    claimed.restart()
    claimed.reconcile()
    assert (driver(kernel), attach(kernel)) == ("vgpumgr", "permit")
    assert told(claimed) == []


def test_a_listed_gpu_is_closed_to_vms_without_a_permit_before_anything_is_claimed(
    host: Host, kernel: FakeKernel
) -> None:
    kernel.list_gpus(GPU)
    assert attach(kernel) == "any"
    host.reconcile()
    assert attach(kernel) == "permit"
    assert asked(kernel) == 0
    assert (kernel.paths.gpu(OTHER_GPU) / "attach").read_text() == "any\n"


def test_it_is_tried_until_udev_acts(claimed: Host, kernel: FakeKernel) -> None:
    kernel.list_gpus(GPU)
    kernel.hand_to(GPU, None)
    kernel.udev = False
    claimed.reconcile()
    claimed.reconcile()
    assert asked(kernel) == 1
    assert told(claimed)[0].endswith("(gpu.unbound)")
    kernel.udev = True
    claimed.reconcile()
    assert driver(kernel) is None
    claimed.clock.go(5)
    claimed.reconcile()
    assert driver(kernel) == "vgpumgr"
    assert asked(kernel) == 2
    assert told(claimed) == []


def test_a_module_that_cannot_be_loaded_is_reported_though_the_host_cannot_be_looked_at(
    claimed: Host, kernel: FakeKernel, caplog: pytest.LogCaptureFixture
) -> None:
    kernel.list_gpus(GPU)
    kernel.unload()
    kernel.loads = False
    claimed.reconcile()
    claimed.reconcile()
    assert [text for text in told(claimed) if text.endswith("(module.missing)")]
    assert reported(claimed) == set()
    assert sum("(module.missing)" in record.message for record in caplog.records) == 1
    kernel.loads = True
    claimed.clock.go(5)
    claimed.reconcile()
    assert told(claimed) == []
    assert GPU in reported(claimed)


def test_a_gpu_of_another_driver_stays_with_it(claimed: Host, kernel: FakeKernel) -> None:
    kernel.list_gpus(GPU)
    kernel.hand_to(GPU, "nvidia")
    for _ in range(3):
        claimed.reconcile()
        claimed.clock.go(100)
    assert driver(kernel) == "nvidia"
    assert asked(kernel) == 0
    assert told(claimed)[0].startswith(f"GPU {GPU}: the driver nvidia has it; ")
    kernel.hand_to(GPU, None)
    claimed.reconcile()
    assert driver(kernel) == "vgpumgr"


def test_a_gpu_that_is_not_listed_is_left_alone(claimed: Host, kernel: FakeKernel) -> None:
    kernel.list_gpus(OTHER_GPU)
    (kernel.paths.gpu(OTHER_GPU) / "attach").write_text("permit\n")
    kernel.hand_to(GPU, None)
    claimed.reconcile()
    assert (driver(kernel), asked(kernel), told(claimed)) == (None, 0, [])


def test_an_older_helper_that_cannot_bind_is_named(
    claimed: Host, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = {name: members for name, members in request.OPERATIONS.items() if name != "bind"}
    monkeypatch.setattr(request, "OPERATIONS", older)
    kernel.list_gpus(GPU)
    kernel.hand_to(GPU, None)
    claimed.reconcile()
    assert told(claimed)[0] == f"GPU {GPU}: not bound: op: unknown operation"


def test_metrics_name_what_cannot_be_used_also_without_the_module(
    claimed: Host, kernel: FakeKernel, tmp_path: Path
) -> None:
    shown = tmp_path / "agent.prom"
    claimed.agent._config = claimed.agent._config.model_copy(update={"metrics_file": shown})
    kernel.list_gpus(GPU, OTHER_GPU)
    kernel.unload()
    kernel.loads = False
    kernel.hand_to(OTHER_GPU, "nvidia")
    claimed.reconcile()
    said = shown.read_text()
    assert f'vgpumgr_agent_gpu_unusable{{gpu="{GPU}",code="module.missing"}} 1.0\n' in said
    assert f'vgpumgr_agent_gpu_unusable{{gpu="{OTHER_GPU}",code="gpu.held"}} 1.0\n' in said
    kernel.loads = True
    kernel.hand_to(OTHER_GPU, None)
    claimed.clock.go(5)
    claimed.reconcile()
    assert "vgpumgr_agent_gpu_unusable{" not in shown.read_text()


# ---- the helper, which does not trust the agent


def refusal(helper: HelperClient, **members: Any) -> str:
    with pytest.raises(Refused) as error:
        helper.call("bind", **members)
    return error.value.code


def test_the_helper_binds_only_what_the_host_lists(helper: HelperClient, kernel: FakeKernel) -> None:
    kernel.hand_to(GPU, None)
    assert refusal(helper, gpu=GPU) == "gpu.unlisted"
    kernel.list_gpus(OTHER_GPU)
    assert refusal(helper, gpu=GPU) == "gpu.unlisted"
    kernel.list_gpus(GPU)
    assert helper.call("bind", gpu=GPU) == {"changed": True}
    assert helper.call("bind", gpu=GPU) == {"changed": False}
    assert asked(kernel) == 1


def test_the_helper_takes_a_gpu_from_no_driver(helper: HelperClient, kernel: FakeKernel) -> None:
    kernel.list_gpus(GPU, "0000:99:00.0")
    kernel.hand_to(GPU, "nvidia")
    assert refusal(helper, gpu=GPU) == "gpu.held"
    assert refusal(helper, gpu="0000:99:00.0") == "gpu.absent"
    assert kernel.log == []


def test_the_helper_says_when_udev_does_nothing(helper: HelperClient, kernel: FakeKernel) -> None:
    kernel.list_gpus(GPU)
    kernel.hand_to(GPU, None)
    kernel.udev = False
    assert helper.call("bind", gpu=GPU) == {"changed": False}
