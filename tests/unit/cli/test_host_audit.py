# SPDX-License-Identifier: Apache-2.0
"""`host audit`: compares a host's claims with libvirt's domains."""

import json

import pytest

from tests.unit.cli.conftest import Cli
from tests.unit.cli.fake_content import SLICES, VM
from tests.unit.cli.fake_libvirt import FakeDomain, FakeLibvirt
from vgpumgr.cli.domain import NAMESPACE

CLAIMED, UNBOUND, RELEASING = map(str, SLICES)
NOBODYS = "51ce0000-0000-4000-8000-0000000000ff"
NEIGHBOUR = "12345678-0000-4000-8000-000000000000"
OTHER = "0b5d7a5e-0000-4000-8000-000000000099"


def metadata(*ids: str) -> str:
    slices = "".join(f"<v:slice id='{each}'/>" for each in ids)
    return f"<v:slices xmlns:v='{NAMESPACE}'>{slices}</v:slices>"


def audit(cli: Cli, uuid: str, *devices: str, named: tuple[str, ...] = (), live: bool = False) -> tuple[int, set[str]]:
    """Return the exit status and the findings (CODE SLICE) for a host with one domain."""
    domain = FakeDomain("web-1", uuid, active=live)
    side = 1 if live else 2
    domain.devices[side] = list(devices)
    domain.metadata[side] = metadata(*named) if named else None
    libvirt = FakeLibvirt(domain)
    cli.session["libvirt"] = libvirt
    result = cli("host", "audit", "--host", "gpu-a", "-o", "json")
    assert libvirt.connections[-1].closed
    return result.status, {f"{each['code']} {each['slice_id']}" for each in json.loads(result.out)}


@pytest.mark.parametrize("live", [False, True])
def test_what_agrees_is_no_difference(cli: Cli, *, live: bool) -> None:
    devices = (CLAIMED, UNBOUND, NEIGHBOUR)
    assert audit(cli, str(VM), *devices, named=(CLAIMED, UNBOUND), live=live) == (0, set())
    assert "agree" in cli("host", "audit", "--host", "gpu-a").out


def test_a_vm_that_was_undefined_is_told_from_one_that_is_stopped(cli: Cli) -> None:
    assert audit(cli, OTHER) == (8, {f"vm.undefined {CLAIMED}", f"claim.unused {UNBOUND}"})
    result = cli("host", "audit", "--host", "gpu-a")
    assert result.status == 8
    assert "vm.undefined" in result.out
    assert "vgpumgr delete slice" in result.out


def test_a_domain_that_lacks_its_slice_is_named(cli: Cli) -> None:
    assert audit(cli, str(VM), UNBOUND)[1] == {f"vm.without_slice {CLAIMED}"}


def test_a_domain_that_has_what_is_not_its_own_is_named(cli: Cli) -> None:
    assert audit(cli, OTHER, CLAIMED, UNBOUND)[1] == {f"vm.undefined {CLAIMED}", f"claim.other_vm {CLAIMED}"}


def test_a_slice_of_metadata_that_nobody_claimed_is_named(cli: Cli) -> None:
    found = audit(cli, str(VM), CLAIMED, UNBOUND, NOBODYS, named=(NOBODYS, "no UUID"))
    assert found == (8, {f"claim.missing {NOBODYS}"})
