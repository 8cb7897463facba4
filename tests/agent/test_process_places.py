# SPDX-License-Identifier: Apache-2.0
"""Claims for processes on a host: agent, helper and configuration are real; a program plays the broker."""

import os
import signal
import tomllib
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from vgpumgr_agent.backends import ObservedGpu
from vgpumgr_agent.helper.brokers import Brokers
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.refused import Refused

from tests.agent import fakebroker
from tests.agent.fakeapi import claim, group
from tests.agent.fakebroker import GPU, behave, shown
from tests.agent.fakekernel import FakeKernel
from tests.agent.host import VM, A, B, C, Host
from tests.agent.test_metrics import samples, show
from vgpumgr.errors import BrokerUnreachableError
from vgpumgr.wire.common import ExecutorState, Workload
from vgpumgr.wire.fleet import DesiredSlice, ReportedGpu, ReportedSlice

MEMORY = 8 << 30
TERMS = {"tenant": "blue", "weight": 300, "cap_us": 0, "cap_period_us": 0, "timeslice_us": 2000, "mem_bytes": MEMORY}


def processes(uuid: UUID, **changes: Any) -> DesiredSlice:
    """A claim for processes, in the API's form."""
    said = {"gpu": GPU, "mdev_type": "process", "workload": Workload.PROCESS, "timeslice_us": 2000}
    return claim(uuid, vm=None, **{**said, "mem_bytes": MEMORY, **changes})


@pytest.fixture
def host(host: Host) -> Host:
    """A host with a GPU that is set aside for processes, beside the GPUs of the module."""
    fakebroker.install(host.kernel.root)
    host.settings = {GPU: {"workload": "process", "executor": {"nvidia": 3}}}
    host.others = [
        ObservedGpu(
            address=GPU,
            engine="NVIDIA H100",
            backend="unmanaged",
            attach="",
            mem_bytes=80 << 30,
            timeslice_min_us=0,
            max_chunk_us=0,
            wall_ns=0,
            idle_ns=0,
            types={},
            uuid="GPU-1",
        )
    ]
    host.restart()
    return host


@pytest.fixture
def serving(host: Host) -> Host:
    """A host on which two claims for processes have their places."""
    learn(host, processes(A), processes(B, share=100))
    assert set(tenants(host)) == {str(A), str(B)}
    return host


def learn(host: Host, *claims: DesiredSlice, **more: Any) -> None:
    host.api.set(slices=list(claims), **more)
    host.learn()
    host.reconcile()  # a look at the GPUs confirms the first document


def tenants(host: Host) -> dict[str, dict[str, Any]]:
    return shown(host.kernel.root)


def said(host: Host, uuid: UUID = A) -> ReportedSlice:
    return {each.id: each for each in host.api.last().slices}[uuid]


def reported_gpu(host: Host) -> ReportedGpu:
    return {each.address: each for each in host.api.last().gpus}[GPU]


def broker_pid(host: Host) -> int:
    return int((fakebroker.directory(host.kernel.root) / GPU / "pid").read_text())


def kill_broker(host: Host) -> None:
    pid = broker_pid(host)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


# ---- a claim's life


def test_a_gpu_that_is_set_aside_is_reported_so(host: Host) -> None:
    host.reconcile()
    found = reported_gpu(host)
    assert (found.backend, found.engine, found.timeslice_min_us, found.types) == ("broker", "native", 2000, [])


def test_the_first_claims_that_a_host_hears_of_wait_for_no_interval(host: Host) -> None:
    """The agent must first see that no other claim has their places."""
    host.api.set(slices=[processes(A)])
    host.agent.control_plane._step()
    host.agent._woken.clear()
    host.reconcile()
    assert host.agent._woken.is_set()
    host.agent._woken.clear()
    host.reconcile()
    assert set(tenants(host)) == {str(A)}
    assert not host.agent._woken.is_set()


def test_a_claim_gets_a_tenant_of_its_name_before_any_program_asks(serving: Host) -> None:
    found = tenants(serving)[str(A)]
    assert (found["native"]["programs"], found["weight"], found["memory_bytes"]) == (0, 300, MEMORY)
    report = said(serving)
    assert (report.present, report.open, report.applied_permille) == (True, False, 300)
    assert (report.enforced_by, report.error) == ("firmware", "")
    assert report.executor.state is ExecutorState.RUNNING
    assert tenants(serving)[str(B)]["weight"] == 100


def test_a_claim_whose_supervisor_is_not_up_yet_is_looked_at_again_soon(serving: Host) -> None:
    behave(serving.kernel.root, supervisor="down")
    serving.reconcile()
    assert said(serving).executor.state is ExecutorState.STARTING
    assert serving.agent._executions.look_again_s(serving.agent._places) == 1.0


def test_the_broker_is_given_what_the_gpu_and_the_claim_say(serving: Host) -> None:
    file = fakebroker.directory(serving.kernel.root) / GPU / "broker.toml"
    found = tomllib.loads(file.read_text())
    assert found["accelerator"] == {"nvidia": 3}
    assert found["tenants"][str(A)] == {"native": True, "weight": 300, "timeslice_us": 2000, "memory": MEMORY}


def test_a_strict_claim_is_capped_at_exactly_its_share(host: Host) -> None:
    learn(host, processes(A, share=333, cap_us=7808, cap_period_us=23_450, timeslice_us=2345))
    found = tenants(host)[str(A)]
    assert (found["cap_ns"] * 1000 // found["cap_period_ns"], found["cap_period_ns"]) == (333, 23_450_000)
    assert said(host).applied_permille == 332  # the value that the API rounded


def test_what_programs_use_is_reported(serving: Host) -> None:
    behave(serving.kernel.root, programs={str(A): 2})
    serving.reconcile()
    report = said(serving)
    assert (report.open, report.run_ns, report.items) == (True, 2000, 2)
    assert (report.executor.memory_used_bytes, report.executor.memory_bytes) == (14, MEMORY)


def test_a_quota_that_changes_is_applied_to_the_running_broker(serving: Host) -> None:
    pid = broker_pid(serving)
    learn(serving, processes(A, share=50, generation=2), processes(B, share=100))
    assert (tenants(serving)[str(A)]["weight"], broker_pid(serving)) == (50, pid)
    assert said(serving).applied_permille == 50


def test_nothing_is_done_where_nothing_changed(serving: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    call = HelperClient.call
    monkeypatch.setattr(HelperClient, "call", lambda self, op, **rest: asked.append(op) or call(self, op, **rest))
    serving.reconcile()
    assert set(asked) == {"observe"}


def test_a_deleted_claim_loses_its_programs_and_is_confirmed_gone(serving: Host) -> None:
    behave(serving.kernel.root, programs={str(A): 1})
    serving.reconcile()
    serving.api.delete(A, groups=[])
    serving.learn()
    assert set(tenants(serving)) == {str(B)}
    assert not said(serving).present


def test_the_last_claim_takes_the_broker_with_it(serving: Host) -> None:
    for uuid in (A, B):
        serving.api.delete(uuid, groups=[])
    serving.learn()
    with pytest.raises(BrokerUnreachableError):
        tenants(serving)
    assert not (fakebroker.directory(serving.kernel.root) / GPU).exists()


def test_slices_for_vms_go_on_beside_it(host: Host) -> None:
    learn(host, claim(C, vm=VM), processes(A), groups=[group("blue", 300)])
    host.start(C)
    host.reconcile()
    assert (host.slices(), set(tenants(host))) == ({C}, {str(A)})


def test_no_vm_starts_with_a_claim_for_processes(serving: Host) -> None:
    assert serving.refused(A) == "claim.processes"


def test_a_host_needs_no_module_if_its_gpus_are_for_processes(host: Host) -> None:
    host.kernel.loaded = False
    learn(host, processes(A))
    assert set(tenants(host)) == {str(A)}
    assert [each.address for each in host.api.last().gpus] == [GPU]
    assert said(host).present


# ---- a process that died is started again


def test_a_broker_that_was_killed_is_started_again_with_all_claims(serving: Host) -> None:
    kill_broker(serving)
    serving.reconcile()
    assert set(tenants(serving)) == {str(A), str(B)}
    assert said(serving).error == ""


def test_an_agent_that_starts_again_leaves_programs_alone(serving: Host) -> None:
    pid = broker_pid(serving)
    serving.restart()
    serving.reconcile()
    serving.learn()
    assert broker_pid(serving) == pid
    assert said(serving).present


def test_places_come_again_after_a_boot(serving: Host) -> None:
    kill_broker(serving)
    for path in sorted((fakebroker.directory(serving.kernel.root) / GPU).iterdir()):
        path.unlink() if not path.is_dir() else None
    serving.reconcile()
    assert set(tenants(serving)) == {str(A), str(B)}


@pytest.mark.parametrize("point", ["broker.written", "broker.applied"])
def test_a_helper_that_dies_in_the_middle_is_gone_on_from(
    serving: Host, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    class DiedError(Exception):
        pass

    def die(name: str) -> None:
        if name == point:
            raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr("vgpumgr_agent.helper.brokers.faults.point", die)
        serving.api.set(slices=[processes(A, share=70), processes(B, share=100)])
        serving.learn()
    serving.reconcile()
    assert {name: each["weight"] for name, each in tenants(serving).items()} == {str(A): 70, str(B): 100}


def test_a_broker_that_does_not_start_is_told_of_and_tried_again(host: Host) -> None:
    behave(host.kernel.root, dies="no driver of branch 580")
    learn(host, processes(A))
    assert said(host).error.startswith("broker.failed: ")
    assert "no driver of branch 580" in said(host).error
    assert not said(host).present
    behave(host.kernel.root)
    host.reconcile()
    assert said(host).error == ""
    assert said(host).present


def test_a_change_that_the_broker_refuses_leaves_the_others_as_they_were(serving: Host) -> None:
    behave(serving.kernel.root, refuses="no memory for another tenant")
    learn(serving, processes(A), processes(B, share=100), processes(C))
    assert set(tenants(serving)) == {str(A), str(B)}
    assert "no memory for another tenant" in said(serving, C).error
    assert said(serving).error == ""
    behave(serving.kernel.root)
    serving.reconcile()
    assert set(tenants(serving)) == {str(A), str(B), str(C)}


def test_a_claim_that_is_refused_keeps_no_other_out(host: Host) -> None:
    """The same holds when all claims arrive at once, like after a boot."""
    learn(host, processes(A), processes(B, timeslice_us=10))
    assert set(tenants(host)) == {str(A)}
    assert "timeslice_us" in said(host, B).error
    assert said(host).error == ""


def test_a_deletion_is_confirmed_though_the_broker_does_not_start(serving: Host) -> None:
    behave(serving.kernel.root, dies="the card fell off the bus")
    kill_broker(serving)
    serving.api.delete(A, groups=[])
    serving.learn()
    assert not said(serving).present
    assert "fell off" in said(serving, B).error


# ---- when no new program may start


def test_in_maintenance_places_without_programs_go_and_come_back_after_it(serving: Host) -> None:
    behave(serving.kernel.root, programs={str(A): 1})
    serving.reconcile()
    serving.api.set(host_state="maintenance")
    serving.learn()
    assert set(tenants(serving)) == {str(A)}
    serving.api.set(host_state="ready")
    serving.learn()
    assert set(tenants(serving)) == {str(A), str(B)}


def test_places_without_programs_end_with_the_lease(serving: Host) -> None:
    behave(serving.kernel.root, programs={str(A): 1})
    serving.clock.go(serving.api.document.lease_s + 1)
    serving.reconcile()
    assert set(tenants(serving)) == {str(A)}


def test_a_place_that_nobody_claims_goes_after_a_while_once_it_has_no_programs(serving: Host, brokers: Brokers) -> None:
    brokers.admit(gpu=GPU, claims=[{"uuid": str(C), **TERMS}])
    for programs, left in ((1, True), (0, False)):
        behave(serving.kernel.root, programs={str(C): programs})
        for _ in range(2):
            serving.learn()
            serving.clock.go(301)
            serving.api.set()
        serving.learn()
        assert (str(C) in tenants(serving)) is left


# ---- settings


def test_a_gpu_that_is_not_set_aside_any_more_says_so(serving: Host) -> None:
    serving.settings = {}
    serving.restart()
    serving.reconcile()
    assert said(serving).error.startswith("gpu.workload: ")
    assert reported_gpu(serving).backend == "unmanaged"


def test_a_gpu_that_is_not_there_is_told_of(host: Host) -> None:
    host.others = []
    host.reconcile()
    assert any(GPU in line and "NVML" in line for line in host.api.last().refusals)


def test_the_helper_believes_its_own_settings_only(helper: HelperClient, kernel: FakeKernel) -> None:
    with pytest.raises(Refused) as caught:
        helper.call("admit", gpu=GPU, claims=[{"uuid": str(A), **TERMS}])
    assert caught.value.code == "gpu.workload"
    fakebroker.install(kernel.root, more='socket_group = "nobody-knows"')
    with pytest.raises(Refused) as caught:
        helper.call("admit", gpu=GPU, claims=[{"uuid": str(A), **TERMS}])
    assert caught.value.code == "broker.refused"
    assert "nobody-knows" in caught.value.reason
    assert helper.call("observe")["brokers"] == []


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("uuid", "../../etc"),
        ("weight", 0),
        ("weight", True),
        ("cap_us", 5),
        ("more", 1),
        ("mem_bytes", -1),
        ("timeslice_us", 1),
        ("tenant", "A b"),
    ],
)
def test_the_helper_refuses_what_cannot_be_meant(helper: HelperClient, member: str, value: object) -> None:
    with pytest.raises(Refused) as caught:
        helper.call("admit", gpu=GPU, claims=[{"uuid": str(A), **TERMS, member: value}])
    assert caught.value.code == "request.invalid"


def test_brokers_are_run_and_changed_by_the_command_that_people_use(kernel: FakeKernel) -> None:
    """All other tests here do the work of `vgpumgr broker` in this process."""
    fakebroker.install(kernel.root)
    found = fakebroker.brokers(kernel.root, command=True)
    assert found.admit(gpu=GPU, claims=[{"uuid": str(A), **TERMS}]) == {"changed": True}
    assert found.admit(gpu=GPU, claims=[{"uuid": str(A), **TERMS, "weight": 5}]) == {"changed": True}
    assert shown(kernel.root)[str(A)]["weight"] == 5
    with pytest.raises(Refused) as caught:
        found.admit(gpu=GPU, claims=[{"uuid": str(B), **TERMS, "timeslice_us": 10}])
    assert (caught.value.code, "timeslice_us" in caught.value.reason) == ("broker.refused", True)
    assert found.dismiss(uuid=str(A)) == {"changed": True}
    assert found.dismiss(uuid=str(A)) == {"changed": False}
    assert found.all() == []


def test_users_of_the_group_may_start_programs(helper: HelperClient, kernel: FakeKernel, tmp_path: Path) -> None:
    fakebroker.install(kernel.root, more='socket_group = "daemon"')
    helper.call("admit", gpu=GPU, claims=[{"uuid": str(A), **TERMS}])
    assert shown(kernel.root)[str(A)]["socket_mode"] == 0o660
    assert shown(kernel.root)[str(A)]["socket_gid"] == 1


# ---- accounting


def counted(host: Host) -> dict[str, int]:
    return {each.tenant: each.run_ns for each in host.api.last().groups if each.gpu == GPU}


def test_a_tenants_places_count_together_and_keep_what_one_of_them_had(host: Host) -> None:
    learn(host, processes(A), processes(B), processes(C, tenant="green", share=100))
    behave(host.kernel.root, programs={str(A): 3, str(B): 2, str(C): 1})
    host.reconcile()
    assert counted(host) == {"blue": 5000, "green": 1000}
    [blue] = [each for each in host.api.last().groups if each.tenant == "blue"]
    assert (blue.weight, blue.timeslice_us) == (600, 2000)
    assert blue.wall_ns > blue.idle_ns > 0

    host.api.delete(A, groups=[])
    host.learn()
    assert counted(host) == {"blue": 5000, "green": 1000}
    behave(host.kernel.root, programs={str(B): 4, str(C): 1})
    host.reconcile()
    assert counted(host) == {"blue": 7000, "green": 1000}


def test_the_meter_counts_what_processes_obtained_once(host: Host) -> None:
    learn(host, processes(A), processes(B))
    for programs in ({str(A): 3, str(B): 2}, {str(A): 5, str(B): 2}):
        behave(host.kernel.root, programs=programs)
        host.reconcile()
    host.api.delete(A, groups=[])
    host.learn()
    kill_broker(host)
    behave(host.kernel.root)  # the next broker counts from zero
    host.reconcile()
    behave(host.kernel.root, programs={str(B): 1})
    host.reconcile()
    assert host.meter is not None
    pending = host.meter.pending()
    assert sum(each.run_ns for each in pending.readings if each.gpu == GPU) == 7000 + 1000


def test_the_metrics_show_what_processes_have_and_whether_their_broker_runs(serving: Host, tmp_path: Path) -> None:
    path = tmp_path / "agent.prom"
    show(serving, path)
    behave(serving.kernel.root, programs={str(A): 3})
    serving.reconcile()
    found = samples(path)
    assert found[f'vgpumgr_broker_up{{gpu="{GPU}"}}'] == 1
    assert found[f'vgpumgr_slice_info{{slice="{A}",vm_uuid="",tenant="blue",gpu="{GPU}"}}'] == 1
    assert [found[f'vgpumgr_slice_programs{{slice="{uuid}"}}'] for uuid in (A, B)] == [3, 0]
    assert [found[f'vgpumgr_slice_open{{slice="{uuid}"}}'] for uuid in (A, B)] == [1, 0]
    assert found[f'vgpumgr_slice_run_seconds_total{{slice="{A}"}}'] == said(serving).run_ns / 1e9 > 0


def test_the_metrics_show_that_a_broker_does_not_start(serving: Host, tmp_path: Path) -> None:
    path = tmp_path / "agent.prom"
    show(serving, path)
    kill_broker(serving)
    behave(serving.kernel.root, dies="the card fell off the bus")
    serving.reconcile()
    found = samples(path)
    assert found[f'vgpumgr_broker_up{{gpu="{GPU}"}}'] == 0
    assert not [name for name in found if name.startswith(("vgpumgr_slice_run", "vgpumgr_broker_started"))]


def test_the_metrics_show_that_a_broker_was_restarted(serving: Host, tmp_path: Path) -> None:
    path = tmp_path / "agent.prom"
    show(serving, path)
    serving.reconcile()
    before = samples(path)[f'vgpumgr_broker_started_seconds{{gpu="{GPU}"}}']
    kill_broker(serving)
    serving.reconcile()
    serving.reconcile()
    assert samples(path)[f'vgpumgr_broker_started_seconds{{gpu="{GPU}"}}'] > before
