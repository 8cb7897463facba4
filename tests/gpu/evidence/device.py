# SPDX-License-Identifier: Apache-2.0
"""The experiments on a GPU of this machine. The GPU must be idle and fit before, and used by nobody else meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.gpu.evidence.document import measure
from vgpumgr.gpu.discovery import chosen, opened
from vgpumgr.gpu.duel import Rig
from vgpumgr.gpu.probe import Watch

if TYPE_CHECKING:
    from vgpumgr.gpu.shares import Effort


def on_device(
    name: str | None,
    *,
    effort: Effort,
    told: Callable[[str], None],
    kept: Callable[[dict[str, Any]], None] = lambda _: None,
    rig: Rig | None = None,
) -> dict[str, Any]:
    """Return the document of the GPU with that UUID or index, or of the first GPU. Raises ProbeRefusedError, RigError.

    `rig`: tests pass another rig than the device itself.
    """
    with opened() as nvml:
        gpu = chosen(nvml.gpus(), [] if name is None else [name])[0]
        nvml.check(gpu)
        watch = Watch(nvml, gpu)
        with watch:
            on_gpu = replace(rig or Rig(), device=gpu.uuid, on_child=watch.ours)
            document = measure(on_gpu, effort=effort, told=told, kept=kept)
        watch.check()
    return document
