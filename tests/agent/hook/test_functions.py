# SPDX-License-Identifier: Apache-2.0
"""A VM must not get a whole GPU of ours, or a virtual function of one, because no claim covers that."""

import pytest
from vgpumgr_agent.hook.server import HookServer

from tests.agent.hook.rig import SLICE, TOLD, VETO, FakeService, Host, domain, function, hostdev, metadata

GPU, VIRTUAL, OTHER = "0000:3b:00.0", "0000:3b:00.4", "0000:5e:00.0"
KINDS = ("hostdev", "interface", "disk")


def ours(host: Host, known_by: str) -> str:
    """A host where the returned function is ours, and another function is not."""
    host.function(OTHER, driver="mlx5_core")
    host.function(GPU, driver={"driver": "vgpumgr"}.get(known_by, "nvidia"), shared=known_by == "adopted")
    host.function(VIRTUAL, driver="vfio-pci", of=GPU)
    if known_by == "list":
        host.configure("gpus", f"# this host's\n{GPU}\n")
    elif known_by == "settings":
        host.configure("agent.toml", f'api_url = "https://a"\n[gpus."{GPU}"]\ndriver = "nvidia"\n')
    return GPU


@pytest.mark.parametrize("operation", VETO)
@pytest.mark.parametrize("known_by", ["list", "settings", "driver", "adopted"])
def test_a_gpu_of_ours_and_its_virtual_functions_are_refused(host: Host, operation: str, known_by: str) -> None:
    ours(host, known_by)
    for address in (GPU, VIRTUAL):
        status, stderr = host.call(operation, domain(function(OTHER) + function(address)))
        assert status == 1
        assert stderr.startswith(f"PCI function {address} is ")
        assert stderr.endswith("(vgpumgr: gpu.shared)\n")
        assert stderr.count("\n") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_whichever_element_hands_it_out(host: Host, kind: str) -> None:
    ours(host, "list")
    assert host.call("prepare", domain(function(VIRTUAL, kind=kind)))[0] == 1
    assert host.call("prepare", domain(function(OTHER, kind=kind))) == (0, "")


@pytest.mark.parametrize("bus", ["0x3b", "59", "073", "0x003B", " 0x3b"])
def test_however_its_number_is_written(host: Host, bus: str) -> None:
    ours(host, "list")
    assert host.call("prepare", domain(function(GPU).replace("'0x3b'", f"'{bus}'")))[0] == 1


def test_without_a_domain_number_it_is_of_the_first(host: Host) -> None:
    ours(host, "list")
    assert host.call("prepare", domain(function(GPU).replace("domain='0x0000'", "")))[0] == 1


def test_a_claim_of_a_slice_does_not_give_the_whole_gpu(host: Host, agent: HookServer, service: FakeService) -> None:
    ours(host, "list")
    status, stderr = host.call("prepare", domain(hostdev() + function(GPU), metadata(SLICE)))
    assert (status, stderr.rpartition(" ")[2]) == (1, "gpu.shared)\n")
    assert service.calls == []


@pytest.mark.parametrize("operation", TOLD)
def test_a_vm_that_runs_with_one_goes_on(host: Host, operation: str) -> None:
    ours(host, "list")
    assert host.call(operation, domain(function(GPU))) == (0, "")


def test_functions_that_are_not_ours_pass_without_the_agent(host: Host) -> None:
    host.function(OTHER, driver="vfio-pci")
    host.function("0000:5e:00.1", driver="vfio-pci", of=OTHER)
    xml = domain(function(OTHER) + function("0000:5e:00.1") + function("0000:ff:1f.7"))
    assert host.call("prepare", xml) == (0, "")
    host.configure("gpus", f"{GPU}\n")
    host.configure("agent.toml", "this is no TOML")
    assert host.call("prepare", xml) == (0, "")


def test_an_address_that_libvirt_cannot_have_written_is_refused(host: Host) -> None:
    status, stderr = host.call("prepare", domain(function(GPU).replace("'0x3b'", "'b'")))
    assert (status, stderr) == (1, "bus of a PCI address is not a number: correct the domain (vgpumgr: xml.invalid)\n")


def test_the_address_that_the_guest_sees_is_none_of_the_host(host: Host) -> None:
    ours(host, "list")
    seen = function(GPU).replace("<source>", "<guest>").replace("</source>", "</guest>")
    own = "<address type='pci' domain='0x0000' bus='0x3b' slot='0x00' function='0x0'/>"
    assert host.call("prepare", domain(seen + f"<hostdev type='usb'>{own}</hostdev>")) == (0, "")


def test_a_list_that_cannot_be_read_refuses(host: Host) -> None:
    host.configure("gpus", "")
    (host.root / "etc/vgpumgr/gpus").unlink()
    (host.root / "etc/vgpumgr/gpus").mkdir()
    status, stderr = host.call("prepare", domain(function(OTHER)))
    assert (status, stderr.rpartition(" ")[2]) == (1, "hook.broken)\n")
    assert host.call("prepare", domain()) == (0, "")
