# SPDX-License-Identifier: Apache-2.0
"""GPUs that keep their vendor's driver: the agent adopts them, or reports why it cannot."""

import errno
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.refused import Refused

from tests.agent.fakekernel import GPU, OTHER_GPU, FakeKernel, FakeSysfs
from tests.agent.host import Host
from vgpumgr.control.executor_settings import ExecutorSettingsError, load
from vgpumgr.control.listed import unusable
from vgpumgr.control.sysfs import HostPaths

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait is needed: the played udev acts before a write to `uevent` returns."""
    monkeypatch.setattr("vgpumgr_agent.helper.operations._BIND_WAIT_S", 0)


@pytest.fixture(autouse=True)
def kept(kernel: FakeKernel) -> None:
    """The vendor's driver has the GPU, and the settings say so."""
    kernel.hand_to(GPU, "nvidia")
    settings(kernel, engine="lease", driver="nvidia")


def settings(kernel: FakeKernel, **said: str) -> None:
    path = kernel.paths.agent_settings
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f'[gpus."{GPU}"]', *(f'{name} = "{value}"' for name, value in said.items())]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o644)


def adoptions(kernel: FakeKernel) -> list[tuple[str, ...]]:
    return [entry for entry in kernel.log if entry[0] == "adopt_gpu"]


def codes(kernel: FakeKernel) -> dict[str, str]:
    return {found.gpu: str(found.code) for found in unusable(FakeSysfs(HostPaths(kernel.root)))}


def driver(kernel: FakeKernel) -> str | None:
    return FakeSysfs(HostPaths(kernel.root)).driver(GPU)


def told(host: Host) -> list[str]:
    return list(host.api.reports[-1].refusals)


def reported(host: Host) -> Iterable[str]:
    return {gpu.address for gpu in host.api.reports[-1].gpus}


# ---- what is wrong with an adopted GPU


def test_each_trouble_of_an_adopted_gpu_has_its_code(kernel: FakeKernel) -> None:
    assert codes(kernel) == {GPU: "gpu.unadopted"}
    kernel.hand_to(GPU, "nouveau")
    assert codes(kernel) == {GPU: "gpu.held"}
    kernel.hand_to(GPU, None)
    assert codes(kernel) == {GPU: "gpu.driverless"}
    kernel.hand_to(GPU, "vgpumgr")
    assert codes(kernel) == {GPU: "gpu.held"}
    kernel.hand_to(GPU, "nvidia")
    kernel.list_gpus(GPU)
    assert codes(kernel) == {GPU: "gpu.twice"}
    kernel.list_gpus()
    kernel.unload()
    assert codes(kernel) == {GPU: "module.missing"}
    for found in unusable(FakeSysfs(HostPaths(kernel.root))):
        assert "\n" not in str(found)


def test_what_is_said_names_the_file_that_says_so(kernel: FakeKernel) -> None:
    for given in ("nouveau", None, "vgpumgr"):
        kernel.hand_to(GPU, given)
        (found,) = unusable(FakeSysfs(HostPaths(kernel.root)))
        assert "agent.toml" in found.found
        assert "nvidia" in found.found


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"driver": "nvidia"}, "needs engine 'lease'"),
        ({"driver": "nvidia", "engine": "soft"}, "needs engine 'lease'"),
        ({"driver": "vgpumgr", "engine": "lease"}, "omit it"),
        ({"driver": "a/b", "engine": "lease"}, "not the name of a driver"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_the_reason(
    kernel: FakeKernel, said: dict[str, str], words: str
) -> None:
    settings(kernel, **said)
    with pytest.raises(ExecutorSettingsError, match=re.escape(words)):
        load(kernel.paths.agent_settings)
    assert codes(kernel) == {}


# ---- the agent


def let_go(host: Host, kernel: FakeKernel) -> None:
    """The driver releases the adopted GPU and binds it again; then the time for the next attempt has come."""
    host.reconcile()
    kernel.hand_to(GPU, "nvidia")
    host.clock.go(100)
    kernel.log.clear()


def test_a_gpu_is_adopted_and_closed_to_vms_without_a_permit(claimed: Host, kernel: FakeKernel) -> None:
    claimed.reconcile()
    assert adoptions(kernel) == [("adopt_gpu", GPU, "permit")]
    assert (driver(kernel), told(claimed)) == ("nvidia", [])
    assert GPU in reported(claimed)
    claimed.reconcile()
    assert len(adoptions(kernel)) == 1


@pytest.mark.parametrize("again", ["module", "driver", "boot"])
def test_it_is_adopted_again(claimed: Host, kernel: FakeKernel, again: str) -> None:
    """The GPU is adopted again after the module was reloaded, after its driver was unbound and bound, and after a
    boot.
    """
    claimed.reconcile()
    if again == "module":
        kernel.unload()
    elif again == "driver":
        kernel.hand_to(GPU, None)
        claimed.reconcile()
        assert told(claimed)[0].endswith("(gpu.driverless)")
        kernel.hand_to(GPU, "nvidia")
    else:
        kernel.reboot()
        kernel.hand_to(GPU, "nvidia")
        claimed.restart()
    claimed.clock.go(100)
    claimed.reconcile()
    assert len(adoptions(kernel)) == 2
    assert (driver(kernel), told(claimed)) == ("nvidia", [])


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EAGAIN, errno.EOPNOTSUPP])
def test_what_the_kernel_refuses_is_told_and_tried_again(claimed: Host, kernel: FakeKernel, number: int) -> None:
    let_go(claimed, kernel)
    kernel.fail["adopt_gpu"] = [number]
    claimed.reconcile()
    assert told(claimed)[0].endswith(f"told to fail [{errno.errorcode[number]}]")
    assert told(claimed)[1].endswith("(gpu.unadopted)")
    claimed.clock.go(5)
    claimed.reconcile()
    assert told(claimed) == []


def test_a_gpu_of_an_unexpected_driver_stays_with_it(claimed: Host, kernel: FakeKernel) -> None:
    let_go(claimed, kernel)
    kernel.hand_to(GPU, "nouveau")
    for _ in range(3):
        claimed.reconcile()
        claimed.clock.go(100)
    assert (driver(kernel), adoptions(kernel)) == ("nouveau", [])
    assert told(claimed)[0].startswith(f"GPU {GPU}: the driver nouveau has it, ")


def test_a_gpu_that_is_given_to_the_module_and_kept_is_left_alone(claimed: Host, kernel: FakeKernel) -> None:
    let_go(claimed, kernel)
    kernel.list_gpus(GPU)
    claimed.reconcile()
    assert adoptions(kernel) == []
    assert told(claimed)[0].endswith("(gpu.twice)")


# ---- the helper, which does not trust the agent


def refusal(helper: HelperClient, gpu: str) -> str:
    with pytest.raises(Refused) as error:
        helper.call("bind", gpu=gpu)
    return error.value.code


def test_the_helper_adopts_only_what_the_settings_name(helper: HelperClient, kernel: FakeKernel) -> None:
    kernel.hand_to(OTHER_GPU, "nvidia")
    assert refusal(helper, OTHER_GPU) == "gpu.unlisted"
    settings(kernel, engine="lease")
    assert refusal(helper, GPU) == "gpu.unlisted"
    assert adoptions(kernel) == []
    settings(kernel, engine="lease", driver="nvidia")
    assert helper.call("bind", gpu=GPU) == {"changed": True}
    assert helper.call("bind", gpu=GPU) == {"changed": False}
    assert len(adoptions(kernel)) == 1


def test_the_helper_believes_no_file_that_others_may_write(helper: HelperClient, kernel: FakeKernel) -> None:
    kernel.paths.agent_settings.chmod(0o666)
    assert refusal(helper, GPU) == "settings.invalid"
    assert adoptions(kernel) == []


def test_the_rule_of_udev_finds_the_table_of_the_gpu(kernel: FakeKernel) -> None:
    """The fixture uses the form that the settings have in the file."""
    rules = (ROOT / "agent/udev/60-vgpumgr.rules").read_text()
    (pattern,) = re.findall(r'PROGRAM=="/bin/grep -q (\S+) /etc/vgpumgr/agent.toml"', rules)
    text = kernel.paths.agent_settings.read_text()
    assert re.search(pattern.replace("%k", GPU), text, re.MULTILINE)
    assert not re.search(pattern.replace("%k", OTHER_GPU), text, re.MULTILINE)
