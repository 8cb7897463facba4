# SPDX-License-Identifier: Apache-2.0
"""Devices and groups without a claim: reported at once, removed when that is certain, and never while a VM uses
them.
"""

import shutil
from uuid import UUID, uuid4

import pytest
from vgpumgr_agent.grace import GRACE_S
from vgpumgr_agent.reconcile import ForgetGroup, RemoveSlice, Why
from vgpumgr_agent.store import FRESH_S

from tests.agent.fakeapi import claim, group
from tests.agent.fakekernel import GPU, OTHER_GPU
from tests.agent.host import OTHER_VM, VM, A, C, Host

BLUE, GREEN = (GPU, "blue"), (GPU, "green")


def groups(host: Host) -> set[tuple[str, str]]:
    return set(host.kernel.state()["groups"])


def lose_state(host: Host) -> None:
    """The agent's directory is lost, and its one-time token with it."""
    shutil.rmtree(host.directory / "state")
    host.api.one_time_tokens.add("one-time")
    host.restart()


def wait(host: Host, seconds: float = GRACE_S) -> None:
    """Time passes, and the API keeps saying that nothing changed."""
    host.clock.go(seconds)
    host.learn()


@pytest.fixture
def forgetful(claimed: Host) -> Host:
    """No record of the tenant green is left: its claim was deleted, then the agent's state was lost."""
    lose_state(claimed)
    claimed.api.set(groups=[group("blue", 600)], slices=[claim(A, vm=VM)])
    return claimed


def stray(host: Host) -> UUID:
    """Add a device of ours that no claim covers."""
    uuid = uuid4()
    host.kernel.do_write(f"sys/bus/pci/devices/{GPU}/mdev_supported_types/vgpumgr-mem16m/create", str(uuid))
    host.helper.call("adopt", uuid=str(uuid))
    return uuid


# ---- groups


def test_a_group_that_the_agent_does_not_remember_goes_after_the_grace(forgetful: Host) -> None:
    forgetful.learn()
    wait(forgetful, GRACE_S - 1)
    assert groups(forgetful) == {BLUE, GREEN}
    wait(forgetful, 1)
    assert groups(forgetful) == {BLUE}


def test_a_group_that_is_named_again_within_the_grace_stays(forgetful: Host) -> None:
    forgetful.learn()
    wait(forgetful, GRACE_S - 1)
    before = forgetful.api.document.groups
    forgetful.api.set(groups=[*before, group("green", 300)])
    wait(forgetful, 1)
    forgetful.api.set(groups=before)
    wait(forgetful, 1)
    wait(forgetful, GRACE_S - 1)
    assert groups(forgetful) == {BLUE, GREEN}


def test_a_group_with_slices_stays_until_they_have_gone(claimed: Host) -> None:
    claimed.start(C, vm=OTHER_VM)
    claimed.kernel.open(str(C))
    lose_state(claimed)
    claimed.api.set(groups=[group("blue", 600)], slices=[claim(A, vm=VM)])
    claimed.learn()
    wait(claimed)
    wait(claimed)
    assert groups(claimed) == {BLUE, GREEN}
    assert claimed.slices() == {C}
    claimed.kernel.close_slice(str(C))
    claimed.reconcile()
    assert claimed.slices() == {C}
    wait(claimed)
    assert (claimed.slices(), groups(claimed)) == (set(), {BLUE, GREEN})
    wait(claimed)
    assert groups(claimed) == {BLUE}


def test_a_group_on_a_gpu_that_is_open_to_all_is_somebody_elses(forgetful: Host) -> None:
    settings = {"weight": 1, "timeslice_us": 1000}
    forgetful.kernel.do_set_tenant(OTHER_GPU, "lab", settings)
    forgetful.learn()
    wait(forgetful)
    assert groups(forgetful) == {BLUE, (OTHER_GPU, "lab")}


def test_a_group_that_is_named_meanwhile_is_not_removed(claimed: Host) -> None:
    outcome = claimed.agent._actions.run([ForgetGroup(GREEN)])
    assert (outcome.done, groups(claimed)) == (0, {BLUE, GREEN})


# ---- devices


def test_a_device_that_nobody_claims_goes_after_the_grace(claimed: Host) -> None:
    claimed.start(A)
    claimed.kernel.open(str(A))
    uuid = stray(claimed)
    claimed.reconcile()
    wait(claimed, GRACE_S - 1)
    assert claimed.slices() == {A, uuid}
    wait(claimed, 1)
    assert claimed.slices() == {A}
    assert [record["uuid"] for record in claimed.helper.call("observe")["records"]] == [str(A)]


def test_a_device_that_a_vm_has_open_is_not_an_orphan(claimed: Host) -> None:
    uuid = stray(claimed)
    claimed.kernel.do_write(f"sys/bus/mdev/devices/{uuid}/permit", "1")
    claimed.kernel.open(str(uuid))
    claimed.reconcile()
    wait(claimed)
    wait(claimed)
    assert claimed.slices() == {uuid}


def test_a_device_that_somebody_else_made_is_not_an_orphan(claimed: Host) -> None:
    claimed.kernel.do_write(f"sys/bus/pci/devices/{GPU}/mdev_supported_types/vgpumgr-mem16m/create", str(uuid4()))
    claimed.reconcile()
    wait(claimed)
    assert len(claimed.slices()) == 1


def test_a_device_that_is_claimed_meanwhile_is_not_removed(claimed: Host) -> None:
    uuid = stray(claimed)
    claimed.api.set(slices=[*claimed.api.document.slices, claim(uuid, vm=VM)])
    claimed.agent.control_plane._step()
    outcome = claimed.agent._actions.run([RemoveSlice(uuid, Why.ORPHAN)])
    assert (outcome.done, claimed.slices()) == (0, {uuid})


def test_a_device_of_ours_that_nobody_claims_or_deleted_is_named(claimed: Host) -> None:
    claimed.start(A)
    claimed.reconcile()
    assert claimed.api.last().refusals == []
    stray = uuid4()
    claimed.kernel.do_write(f"sys/bus/pci/devices/{GPU}/mdev_supported_types/vgpumgr-mem16m/create", str(stray))
    claimed.reconcile()
    assert claimed.api.last().refusals == []  # not ours
    claimed.helper.call("adopt", uuid=str(stray))
    claimed.reconcile()
    (named,) = claimed.api.last().refusals
    assert str(stray) in named
    assert claimed.slices() == {A, stray}


# ---- when it is not certain


@pytest.mark.parametrize(
    "change",
    [{"epoch": uuid4(), "epoch_confirmed": False, "generation": 9}, {"generation": 0}, {"host_id": uuid4()}],
    ids=["unconfirmed", "older", "another database"],
)
def test_an_answer_that_cannot_be_trusted_makes_no_orphans(claimed: Host, change: dict[str, object]) -> None:
    uuid = stray(claimed)
    claimed.kernel.do_set_tenant(GPU, "red", {"weight": 1, "timeslice_us": 1000})
    claimed.api.set(**change)
    claimed.learn()
    wait(claimed)
    wait(claimed)
    assert uuid in claimed.slices()
    assert (GPU, "red") in groups(claimed)


def test_while_the_api_is_away_nothing_is_an_orphan(claimed: Host) -> None:
    uuid = stray(claimed)
    claimed.kernel.do_set_tenant(GPU, "red", {"weight": 1, "timeslice_us": 1000})
    claimed.reconcile()
    for _ in range(3):
        claimed.clock.go(GRACE_S)
        claimed.reconcile()
    claimed.restart()
    claimed.reconcile()
    claimed.clock.go(FRESH_S)
    claimed.reconcile()
    claimed.clock.go(GRACE_S)
    claimed.reconcile()
    claimed.learn()  # the grace period starts only now
    assert uuid in claimed.slices()
    assert (GPU, "red") in groups(claimed)
    wait(claimed)
    assert uuid not in claimed.slices()
    assert (GPU, "red") not in groups(claimed)


def test_what_was_overdue_a_moment_ago_stays_once_the_api_has_gone(claimed: Host) -> None:
    uuid = stray(claimed)
    claimed.clock.go(FRESH_S + 1)
    outcome = claimed.agent._actions.run([RemoveSlice(uuid, Why.ORPHAN)])
    assert (outcome.done, claimed.slices()) == (0, {uuid})
