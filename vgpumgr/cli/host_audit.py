# SPDX-License-Identifier: Apache-2.0
"""`host audit`: compares this host's claims with libvirt's domains, and says which side is wrong where they differ.

The API cannot distinguish an undefined VM from a stopped one; only libvirt can. The audit changes nothing.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from vgpumgr.cli.failures import Status
from vgpumgr.cli.session import JsonOutput, JsonOutputOption, begin, table

if TYPE_CHECKING:
    from vgpumgr.wire.resources import Slice


class Difference(StrEnum):
    """How claims and domains can differ. Other programs match these strings: never change a string or its meaning."""

    VM_UNDEFINED = "vm.undefined"
    VM_WITHOUT = "vm.without_slice"
    CLAIM_UNUSED = "claim.unused"
    CLAIM_MISSING = "claim.missing"
    CLAIM_OTHER_VM = "claim.other_vm"


_ADVICE = {
    Difference.VM_UNDEFINED: "libvirt does not know the VM: `vgpumgr delete slice` if it is gone for good",
    Difference.VM_WITHOUT: "the domain does not have it: `vgpumgr attach`, or `vgpumgr delete slice`",
    Difference.CLAIM_UNUSED: "claimed for no VM, and no domain has it: `vgpumgr delete slice` if it is not needed",
    Difference.CLAIM_MISSING: "no claim on this host: claim one for this VM, or remove it with `vgpumgr detach`",
    Difference.CLAIM_OTHER_VM: "claimed for another VM: remove it with `vgpumgr detach`",
}


@dataclass(frozen=True, kw_only=True)
class Known:
    """A domain that libvirt knows. `devices`: mediated devices of any vendor, in the definition or the running VM."""

    name: str
    uuid: UUID
    devices: frozenset[UUID]
    metadata: frozenset[UUID]


@dataclass(frozen=True, kw_only=True)
class Found:
    """A difference. `domain`: "" if no domain is involved."""

    code: Difference
    slice_id: UUID
    vm_uuid: UUID | None
    domain: str

    @property
    def todo(self) -> str:
        return _ADVICE[self.code]


def differences(claims: Sequence["Slice"], domains: Sequence[Known]) -> Iterator[Found]:
    """Compare claims with domains. A device in neither a claim nor our metadata belongs to another vendor."""
    by_uuid = {domain.uuid: domain for domain in domains}
    for claim in claims:
        users = [domain for domain in domains if claim.id in domain.devices | domain.metadata]
        own = None if claim.vm_uuid is None else by_uuid.get(claim.vm_uuid)
        code = None
        if claim.vm_uuid is None:
            code = None if users else Difference.CLAIM_UNUSED
        elif own is None:
            code = Difference.VM_UNDEFINED
        elif claim.id not in own.devices:
            code = Difference.VM_WITHOUT
        if code is not None:
            yield Found(code=code, slice_id=claim.id, vm_uuid=claim.vm_uuid, domain="" if own is None else own.name)
        for domain in users:
            if claim.vm_uuid not in (None, domain.uuid):
                yield _of(Difference.CLAIM_OTHER_VM, claim.id, domain)
    known = {claim.id for claim in claims}
    for domain in domains:
        for slice_id in sorted(domain.metadata - known):
            yield _of(Difference.CLAIM_MISSING, slice_id, domain)


def _of(code: Difference, slice_id: UUID, domain: Known) -> Found:
    return Found(code=code, slice_id=slice_id, vm_uuid=domain.uuid, domain=domain.name)


def audit(
    context: typer.Context,
    name: Annotated[str | None, typer.Option("--host", metavar="NAME", help="this host's name in the API")] = None,
    connect: Annotated[str, typer.Option(metavar="URI", help="URI of libvirt")] = "qemu:///system",
    output: JsonOutputOption = JsonOutput.TABLE,
) -> None:
    """Compare the claims on this host with libvirt's domains; change nothing.

    Exit status 0: they agree; 8: they differ.
    """
    from vgpumgr.cli.domain import all_domains

    session = begin(context, output)
    claims = session.client.slices(host=name or os.uname().nodename.split(".")[0], state=None)
    counting = [claim for claim in claims if claim.state not in ("releasing", "lost")]
    with all_domains(connect, libvirt=session.libvirt) as opened:
        domains = [
            Known(
                name=domain.name,
                uuid=domain.uuid,
                devices=frozenset(domain.devices(live=True) | domain.devices(live=False)),
                metadata=_uuids([*domain.slices(live=True), *domain.slices(live=False)]),
            )
            for domain in opened
        ]
    found = list(differences(counting, domains))
    if output == JsonOutput.JSON:
        session.print_json([_said(each) for each in found])
    elif found:
        rows = [
            (str(each.code), str(each.slice_id), str(each.vm_uuid or "-"), each.domain or "-", each.todo)
            for each in found
        ]
        session.print(table(("DIFFERENCE", "SLICE", "VM", "DOMAIN", "WHAT TO DO"), rows))
    else:
        session.print(f"{len(counting)} claims and {len(domains)} domains agree")
    if found:
        raise typer.Exit(Status.WARNINGS)


def _said(found: Found) -> dict[str, str | None]:
    return {
        "code": str(found.code),
        "slice_id": str(found.slice_id),
        "vm_uuid": None if found.vm_uuid is None else str(found.vm_uuid),
        "domain": found.domain,
        "todo": found.todo,
    }


def _uuids(texts: Iterable[str]) -> frozenset[UUID]:
    """Return the UUIDs among the texts. Tenants can write the metadata, so any other text is ignored."""
    found = set()
    for text in texts:
        try:
            found.add(UUID(text))
        except ValueError:
            continue
    return frozenset(found)
