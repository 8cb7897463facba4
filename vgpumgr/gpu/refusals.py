# SPDX-License-Identifier: Apache-2.0
"""Why a GPU is not probed. Codes are frozen: scripts branch on them."""

from enum import StrEnum

from vgpumgr.errors import ProbeRefusedError


class Refusal(StrEnum):
    """The reason why nothing was measured, or why the measurement means nothing."""

    BINDING_MISSING = "probe.binding_missing"  # pynvml is not installed
    NO_DRIVER = "probe.no_driver"  # NVML is missing, or the kernel module is not loaded
    VERSION_MISMATCH = "probe.version_mismatch"  # NVML and the kernel module are of different releases
    NOT_PERMITTED = "probe.not_permitted"
    NVML_FAILED = "probe.nvml_failed"  # NVML refuses for another reason, which the text names
    NO_GPU = "probe.no_gpu"
    GPU_UNKNOWN = "probe.gpu_unknown"  # no GPU has that index or UUID
    GPU_LOST = "probe.gpu_lost"  # fell off the bus, or needs a reset
    BUSY = "probe.busy"  # it has processes that are not ours
    MIG = "probe.mig"
    COMPUTE_MODE = "probe.compute_mode"  # it admits only one process, or none
    VIRTUALISED = "probe.virtualised"  # this would measure a hypervisor's scheduler
    DRIVER_UNKNOWN = "probe.driver_unknown"  # the shim does not know this release's structures
    CUDA_MISSING = "probe.cuda_missing"
    SHIM_MISSING = "probe.shim_missing"  # the shim was not built, or cannot be loaded
    SHIM_BLIND = "probe.shim_blind"  # the shim is loaded, but saw no channel group
    LOAD_FAILED = "probe.load_failed"


def refuse(code: Refusal, detail: str) -> ProbeRefusedError:
    """Return the exception for a refusal. `detail`: one line with the finding and what to do."""
    return ProbeRefusedError(code, detail)
