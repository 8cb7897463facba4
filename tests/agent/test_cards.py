# SPDX-License-Identifier: Apache-2.0
"""A claim belongs to a card: the agent makes its slice on that card, and nowhere else."""

import json
from pathlib import Path

import pytest
from vgpumgr_agent.hook import admission

from tests.agent.fakeapi import FakeApi, claim, group
from tests.agent.fakekernel import GPU, OTHER_GPU, FakeKernel
from tests.agent.host import VM, A, B, Host
from tests.agent.test_reconcile import gpu
from vgpumgr.control import pci
from vgpumgr.control.sysfs import HostPaths
from vgpumgr.wire.fleet import DesiredCard

HERE, THERE = DesiredCard(serial="0000000000000011"), DesiredCard(serial="0000000000000022")


def plug(kernel: FakeKernel, address: str, card: DesiredCard, device: str = "0x2330") -> None:
    """Put a card into a slot while the host is off."""
    directory = kernel.paths.pci_device(address)
    (directory / "vendor").write_text("0x10de\n")
    (directory / "device").write_text(f"{device}\n")
    (kernel.paths.gpu(address) / "serial").write_text(f"{card.serial}\n")


@pytest.fixture
def swappable(host: Host, kernel: FakeKernel, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Host:
    """The host has a claim on each of two cards."""
    monkeypatch.setattr(admission, "_DECIDE_S", 1.0)
    plug(kernel, GPU, HERE)
    plug(kernel, OTHER_GPU, THERE)
    api.set(
        groups=[group("blue", 600, card=HERE), group("blue", 200, card=THERE, gpu=OTHER_GPU)],
        slices=[claim(A, vm=VM, card=HERE), claim(B, vm=VM, card=THERE, gpu=OTHER_GPU)],
    )
    host.learn()
    return host


def places(host: Host) -> dict[str, str]:
    return {uuid: found.gpu for uuid, found in host.kernel.slices.items()}


def weights(host: Host) -> dict[str, int]:
    return {gpu: found.weight for (gpu, _), found in host.kernel.tenants.items() if found.configured}


def swap(host: Host) -> None:
    host.kernel.reboot()
    plug(host.kernel, GPU, THERE)
    plug(host.kernel, OTHER_GPU, HERE)


def test_the_report_says_what_cards_say_of_themselves(swappable: Host) -> None:
    assert [(gpu.address, gpu.serial, gpu.pci_ids) for gpu in swappable.api.last().gpus] == [
        (GPU, HERE.serial, "10de:2330"),
        (OTHER_GPU, THERE.serial, "10de:2330"),
    ]


@pytest.mark.parametrize("looks", [True, False])
def test_slices_and_shares_follow_cards_that_were_swapped(swappable: Host, looks: bool) -> None:
    """The same holds when the VM starts before the agent has looked at the host, and while the API is unreachable."""
    swap(swappable)
    swappable.api.away = True
    swappable.restart()
    if looks:
        swappable.reconcile()
    swappable.start(A, B)
    assert places(swappable) == {str(A): OTHER_GPU, str(B): GPU}
    assert weights(swappable) == {GPU: 200, OTHER_GPU: 600}


def test_a_document_with_addresses_of_before_names_the_same_claims(swappable: Host) -> None:
    """In an untrusted document, a claim on another GPU would count as a claim that is no longer named."""
    swap(swappable)
    swappable.reconcile()
    swappable.api.set(epoch_confirmed=False)
    swappable.learn()
    assert swappable.store is not None
    assert swappable.store.kept is not None
    assert [one.unnamed_since for one in swappable.store.kept.claims] == [None, None]
    swappable.start(A)
    assert places(swappable) == {str(A): OTHER_GPU}


def test_another_card_in_its_place_is_not_given_out(swappable: Host) -> None:
    swappable.kernel.reboot()
    plug(swappable.kernel, GPU, DesiredCard(serial="0000000000000033"))
    swappable.reconcile()
    assert swappable.refused(A) == "gpu.absent"
    assert places(swappable) == {}
    assert GPU not in weights(swappable)
    [line] = swappable.api.last().refusals
    assert HERE.serial in line
    assert str(A) in line
    assert str(B) not in line

    plug(swappable.kernel, GPU, HERE)
    swappable.start(A)
    swappable.reconcile()
    assert places(swappable) == {str(A): GPU}
    assert swappable.api.last().refusals == []


def rehome(host: Host, *, generation: int) -> None:
    """The API has moved A from the first card to the second."""
    host.api.set(
        groups=[group("blue", 800, card=THERE, gpu=OTHER_GPU)],
        slices=[
            claim(A, vm=VM, card=THERE, gpu=OTHER_GPU).model_copy(update={"generation": generation}),
            claim(B, vm=VM, card=THERE, gpu=OTHER_GPU),
        ],
    )
    host.learn()


def test_a_claim_that_was_moved_to_another_card_is_made_there(swappable: Host) -> None:
    """Removing the card also removed the device, but the slice's record is still there."""
    swappable.start(A)
    swappable.kernel.reboot()
    plug(swappable.kernel, GPU, DesiredCard(serial="0000000000000033"))
    swappable.restart()
    rehome(swappable, generation=2)
    swappable.start(A)
    assert places(swappable) == {str(A): OTHER_GPU}
    assert weights(swappable) == {OTHER_GPU: 800}


def test_a_device_where_a_claim_was_goes_once_no_vm_has_it(swappable: Host) -> None:
    swappable.start(A)
    swappable.kernel.open(str(A))
    rehome(swappable, generation=2)
    assert places(swappable) == {str(A): GPU}
    swappable.kernel.close_slice(str(A))
    swappable.reconcile()
    assert places(swappable) == {}
    swappable.start(A)
    assert places(swappable) == {str(A): OTHER_GPU}


def test_a_card_without_a_number_is_known_by_place_and_kind(swappable: Host) -> None:
    kind = DesiredCard(pci_ids="10de:2330")
    swappable.api.set(groups=[group(card=kind)], slices=[claim(A, vm=VM, card=kind)])
    swappable.learn()
    swappable.start(A)
    swappable.release(A)
    swappable.kernel.reboot()
    plug(swappable.kernel, GPU, DesiredCard(), device="0x27b8")
    assert swappable.refused(A) == "gpu.absent"


def test_an_api_of_before_speaks_of_addresses(swappable: Host) -> None:
    swappable.api.set(groups=[group()], slices=[claim(A, vm=VM)])
    swappable.learn()
    swap(swappable)
    swappable.start(A)
    assert places(swappable) == {str(A): GPU}


def test_a_module_of_before_tells_no_serial_number(swappable: Host) -> None:
    (swappable.kernel.paths.gpu(GPU) / "serial").unlink()
    swappable.reconcile()
    assert [(gpu.serial, gpu.pci_ids) for gpu in swappable.api.last().gpus] == [
        ("", "10de:2330"),
        (THERE.serial, "10de:2330"),
    ]
    swappable.start(A)
    assert places(swappable) == {str(A): GPU}


def test_vendor_and_device_are_one_word(tmp_path: Path) -> None:
    assert pci.ids(tmp_path) == ""
    (tmp_path / "vendor").write_text("0x10de\n")
    assert pci.ids(tmp_path) == ""
    (tmp_path / "device").write_text("0x2330\n")
    assert pci.ids(tmp_path) == "10de:2330"
    (tmp_path / "device").write_bytes(b"\xff\n")
    assert pci.ids(tmp_path) == ""


def test_a_measured_switch_cost_is_reported_and_bounds_timeslices(host: Host, kernel: FakeKernel) -> None:
    def said() -> tuple[str, int, int]:
        host.reconcile()
        [found] = [gpu for gpu in host.api.last().gpus if gpu.address == GPU]
        return found.uuid, found.switch_cost_us, found.timeslice_min_us

    _, cost_us, least_us = said()
    assert cost_us == 0
    own = gpu(address=GPU, uuid="GPU-1", backend="unmanaged", types={})
    host.agent._others = lambda: [own]
    assert said() == ("GPU-1", 0, least_us)
    kept = HostPaths(kernel.root).probes
    kept.mkdir(parents=True)
    for cost, expected_us in ((130.0, 2600), (1.0, max(20, least_us)), (1e9, 1_000_000)):
        figures = {"conclusive": True, "switch_cost_us": {"mean": cost, "low": cost}}
        (kept / "GPU-1.json").write_text(json.dumps(figures))
        assert said()[2] == expected_us
