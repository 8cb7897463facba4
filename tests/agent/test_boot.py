# SPDX-License-Identifier: Apache-2.0
"""VMs that start with their host, before the network, the API's first answer, the module or its GPUs are available."""

import shutil
import time
from types import SimpleNamespace
from uuid import uuid4

import pytest
from vgpumgr_agent.api import QUICK_S
from vgpumgr_agent.hook import admission
from vgpumgr_agent.hook.service import PREPARE_LIMIT_S

from tests.agent.fakeapi import claim
from tests.agent.fakekernel import GPU
from tests.agent.host import OTHER_VM, VM, A, B, C, Host, later

WAIT_S = 5.0


@pytest.fixture
def booting(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    """The host's agent has just started and cannot reach the API."""
    claimed.restart()
    claimed.api.away = True
    monkeypatch.setattr(admission, "_FIRST_ANSWER_S", WAIT_S)
    return claimed


def api_comes(host: Host, after_s: float = 0.3) -> None:
    later(after_s, lambda: setattr(host.api, "away", False))


def test_cached_claims_with_a_lease_start_without_the_api_after_one_wait(
    booting: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_FIRST_ANSWER_S", 1.0)
    begun = time.monotonic()
    booting.start(A)
    assert time.monotonic() - begun >= 1
    monkeypatch.setattr(admission, "_FIRST_ANSWER_S", WAIT_S)
    begun = time.monotonic()
    booting.start(B)
    assert booting.refused(C) == "claim.other_vm"
    assert time.monotonic() - begun < WAIT_S


def test_the_api_may_have_changed_its_mind_about_cached_claims(booting: Host) -> None:
    booting.api.delete(B, groups=booting.api.document.groups)
    api_comes(booting)
    assert booting.refused(B) == "claim.deleted"
    booting.start(A)


def test_what_the_api_cannot_change_needs_no_api(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed.api.delete(C, groups=claimed.api.document.groups)
    claimed.learn()
    claimed.restart()
    claimed.api.away = True
    monkeypatch.setattr(admission, "_FIRST_ANSWER_S", WAIT_S)
    other_vendors = uuid4()
    claimed.kernel.paths.slice(str(other_vendors)).mkdir()
    begun = time.monotonic()
    claimed.start(other_vendors)
    assert claimed.refused(C, vm=OTHER_VM) == "claim.deleted"
    assert time.monotonic() - begun < WAIT_S


def test_without_cached_claims_the_first_answer_is_waited_for(booting: Host) -> None:
    credentials = (booting.directory / "state/credentials.json").read_bytes()
    shutil.rmtree(booting.directory / "state")
    (booting.directory / "state").mkdir()
    (booting.directory / "state/credentials.json").write_bytes(credentials)
    booting.restart()
    api_comes(booting)
    booting.start(A, metadata=(A,))
    assert booting.slices() == {A}


def test_with_a_lease_that_has_ended_the_first_answer_is_waited_for(booting: Host) -> None:
    booting.clock.go(25 * 3600)
    api_comes(booting)
    booting.start(A)


def test_a_claim_that_was_made_while_the_host_was_down_is_waited_for(booting: Host) -> None:
    new = uuid4()
    booting.api.set(slices=[*booting.api.document.slices, claim(new, vm=VM)])
    api_comes(booting)
    booting.start(new)


def test_an_unbound_claim_waits_for_the_api(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed.api.set(slices=[*claimed.api.document.slices, claim(unbound := uuid4(), vm=None)])
    claimed.learn()
    claimed.restart()
    claimed.api.away = True
    monkeypatch.setattr(admission, "_FIRST_ANSWER_S", WAIT_S)
    api_comes(claimed)
    claimed.start(unbound, vm=OTHER_VM)
    assert claimed.refused(unbound) == "claim.other_vm"


def test_what_another_thread_hears_ends_the_wait(booting: Host) -> None:
    booting.clock.go(25 * 3600)
    assert booting.store is not None
    later(0.3, booting.store.touch)
    booting.start(A)


def test_the_wait_ends(booting: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_FIRST_ANSWER_S", 1.0)
    booting.clock.go(25 * 3600)
    begun = time.monotonic()
    api_comes(booting, WAIT_S)
    assert booting.refused(A) == "lease.expired"
    assert 1 <= time.monotonic() - begun < WAIT_S


def test_the_wait_leaves_time_for_a_last_try_and_for_making_devices() -> None:
    assert QUICK_S < PREPARE_LIMIT_S - admission._FIRST_ANSWER_S - admission._ASK_PAUSE_S


@pytest.mark.parametrize("answer", ["heard before", "refuses"])
def test_an_api_that_has_answered_is_not_waited_for(booting: Host, answer: str) -> None:
    if answer == "heard before":
        booting.api.away = False
        booting.learn()
        booting.api.away = True
    else:
        booting.api.away = False
        booting.api.token = "revoked"
    booting.clock.go(25 * 3600)
    begun = time.monotonic()
    assert booting.refused(B) == "lease.expired"
    assert booting.refused(uuid4(), metadata=(A,)) == "lease.expired"
    assert time.monotonic() - begun < WAIT_S


def test_a_gpu_that_is_not_shared_yet_is_waited_for(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = claimed.kernel.paths.mdev_bus / GPU
    device = gpu.readlink()
    gpu.unlink()
    later(0.5, lambda: gpu.symlink_to(device))
    claimed.start(A)
    assert claimed.kernel.permit_s(str(A)) > 0
    monkeypatch.setattr(admission, "_DECIDE_S", 2)
    gpu.unlink()
    assert claimed.refused(B) == "gpu.unknown"


def test_a_module_that_is_not_loaded_yet_is_waited_for(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed.kernel.loaded = False
    later(0.5, lambda: setattr(claimed.kernel, "loaded", True))
    claimed.start(A)
    assert claimed.kernel.permit_s(str(A)) > 0
    monkeypatch.setattr(admission, "_DECIDE_S", 2)
    claimed.kernel.loaded = False
    assert claimed.refused(B) == "host.not_ready"


def test_what_was_waited_for_is_told_even_if_time_runs_out_between_two_tries(
    claimed: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: time.sleep(seconds + 2))
    monkeypatch.setattr(admission, "time", late)
    monkeypatch.setattr(admission, "_DECIDE_S", 2)
    claimed.kernel.loaded = False
    assert claimed.refused(A) == "host.not_ready"
