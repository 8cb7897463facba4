# SPDX-License-Identifier: Apache-2.0
"""`attach` and `detach`: on the GPU host, as root, for a domain of its libvirt."""

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from vgpumgr.cli.session import JsonOutput, JsonOutputOption, Output, Session, begin
from vgpumgr.cli.units import parse_uuid
from vgpumgr.errors import ClaimMismatchError

if TYPE_CHECKING:
    from vgpumgr.cli.agent_socket import AgentSocket

SYSTEM_URI = "qemu:///system"
DETACH_S = 20.0

SliceArgument = Annotated[str, typer.Argument(metavar="SLICE", help="the slice's UUID")]
DomainOption = Annotated[str, typer.Option("--domain", metavar="NAME", help="name or UUID of the domain")]
ConnectOption = Annotated[str, typer.Option("--connect", metavar="URI", help="URI of libvirt")]


def attach(
    context: typer.Context,
    slice_id: SliceArgument,
    domain: DomainOption,
    connect: ConnectOption = SYSTEM_URI,
    output: JsonOutputOption = JsonOutput.TABLE,
) -> None:
    """Attach a claimed slice to a domain of this host: to its definition and, if it runs, to the running VM."""
    from vgpumgr.cli.domain import open_domain
    from vgpumgr.cli.plugging import attach_slice

    session = begin(context, output)
    wanted = parse_uuid(slice_id, "slice")
    claim = session.client.slice(wanted)
    if claim.state in ("releasing", "lost"):
        why = "was lost with its host, or moved to another one" if claim.state == "lost" else "is being released"
        raise ClaimMismatchError(f"slice {wanted} {why}; claim another with `vgpumgr create slice`")
    with open_domain(domain, connect, libvirt=session.libvirt) as opened:
        if claim.vm_uuid not in (None, opened.uuid):
            raise ClaimMismatchError(
                f"slice {wanted} is for VM {claim.vm_uuid}, and domain {opened.name} is VM {opened.uuid};"
                f" claim one for it with `vgpumgr create slice --vm {opened.uuid}`"
            )
        changed = attach_slice(opened, wanted, _agent(session))
        _tell(session, wanted, opened.name, "attached", changed)


def detach(
    context: typer.Context,
    slice_id: SliceArgument,
    domain: DomainOption,
    connect: ConnectOption = SYSTEM_URI,
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="how long the guest may take to release it")
    ] = DETACH_S,
    output: JsonOutputOption = JsonOutput.TABLE,
) -> None:
    """Detach a slice from a domain of this host. The claim stays; the API is not asked."""
    from vgpumgr.cli.domain import open_domain
    from vgpumgr.cli.plugging import detach_slice

    session = begin(context, output)
    wanted = parse_uuid(slice_id, "slice")
    with open_domain(domain, connect, libvirt=session.libvirt) as opened:
        changed = detach_slice(opened, wanted, _agent(session), wait_s=wait, sleep=session.sleep, clock=session.clock)
        _tell(session, wanted, opened.name, "detached", changed)


def _agent(session: Session) -> "AgentSocket":
    from vgpumgr.cli.agent_socket import HOOK_SOCKET, AgentSocket

    return AgentSocket(path=session.root / HOOK_SOCKET)


def _tell(session: Session, slice_id: UUID, domain: str, what: str, changed: list[str]) -> None:
    if session.output == Output.JSON:
        session.print_json({"slice": str(slice_id), "domain": domain, "state": what, "changed": changed})
    elif changed:
        session.print(f"slice {slice_id} {what}, domain {domain}: {' and '.join(changed)}")
    else:
        session.print(f"slice {slice_id} was already {what}, domain {domain}")
