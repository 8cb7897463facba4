# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs as inventory: they are reported so that operators can see them, and never shared by us."""

import importlib
import logging
from typing import Any

from vgpumgr_agent.backends import ObservedGpu

log = logging.getLogger(__name__)

NAME = "unmanaged"


def discover(nvml: Any = None) -> list[ObservedGpu]:
    """Return this host's NVIDIA GPUs, or none without NVIDIA's driver or its Python binding. Never raises.

    `nvml`: the module to use instead of pynvml.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return []
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:  # the usual case: no driver
        log.debug("no NVIDIA GPUs: %s", error)
        return []
    try:
        return [_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        log.warning("NVIDIA GPUs cannot be listed: %s", error)
        return []
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any) -> ObservedGpu:
    pci = nvml.nvmlDeviceGetPciInfo(handle)
    address = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
    ids = int(pci.pciDeviceId)  # holds device and vendor
    return ObservedGpu(
        address=address,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        pci_ids=f"{ids & 0xFFFF:04x}:{ids >> 16:04x}",
        engine=_text(nvml.nvmlDeviceGetName(handle))[:64],
        backend=NAME,
        attach="",
        mem_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        timeslice_min_us=0,
        max_chunk_us=0,
        wall_ns=0,
        idle_ns=0,
        types={},
    )


def _text(said: str | bytes) -> str:
    """Return a text. Bindings before version 11.5 return bytes."""
    return said.decode("ascii", errors="replace") if isinstance(said, bytes) else said
