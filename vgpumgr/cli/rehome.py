# SPDX-License-Identifier: Apache-2.0
"""`host rehome`: moves the claims of a GPU that is gone to another GPU of the same host."""

from typing import TYPE_CHECKING, Annotated

import typer

from vgpumgr.cli.change import GenerationOption
from vgpumgr.cli.kinds import checked_name
from vgpumgr.cli.make import request
from vgpumgr.cli.operation import present
from vgpumgr.cli.session import Output, OutputOption, begin
from vgpumgr.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vgpumgr.wire.resources import Gpu


def rehome(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="HOST")],
    old: Annotated[str, typer.Argument(metavar="OLD", help="the GPU that is gone: address, id, UUID or serial number")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="the GPU of the same host that gets its claims")],
    if_generation: GenerationOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move the claims of a GPU that is gone to another GPU of its host, all or none.

    Use it for a card that has failed, was removed or was replaced. The VMs of its slices must have stopped. Quotas do
    not change, and a VM that starts again gets its slice on the new GPU.
    """
    from vgpumgr.wire.operations import GpuRehome

    session = begin(context, output)
    checked_name(name, "host")
    there = list(session.client.gpus(host=name))
    gone, taker = _one(there, name, old), _one(there, name, new)
    if gone.id == taker.id:
        raise ArgumentError(f"{old[:80]} and {new[:80]} are the same GPU; name the one that gets its claims")
    seen = session.client.gpu(gone.id).etag if if_generation is None else if_generation
    body = request(GpuRehome, to=taker.id)
    present(session, [session.client.rehome_gpu(gone.id, body, if_match=seen)], single=True)


def _one(there: "Sequence[Gpu]", host: str, word: str) -> "Gpu":
    """Return the GPU that `word` names. The address of an occupied slot names the GPU in the slot."""
    found = [gpu for gpu in there if word in (gpu.address, f"{gpu.host}/{gpu.address}", str(gpu.id))]
    found = found or [gpu for gpu in there if word and word in (gpu.uuid, gpu.serial)]
    if len(found) != 1:
        what = "several GPUs" if found else "no GPU"
        raise ArgumentError(f"{host} has {what} {word[:80]!r}; `vgpumgr get gpus --host {host}` lists them")
    return found[0]
