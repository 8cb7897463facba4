# SPDX-License-Identifier: Apache-2.0
"""The GPUs that NVIDIA's management library lists, their processes, and whether they may be measured. Only reads.

pynvml is imported when the library is opened; it loads libnvidia-ml.so.1 of the installed driver.
"""

import contextlib
import importlib
import pwd
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpumgr.errors import ProbeRefusedError
from vgpumgr.gpu.refusals import Refusal, refuse

PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU as the driver describes it. `mig`: the GPU is divided. `compute_mode`, `virtualization`: NVML's numbers.

    `failed`: why the driver does not describe the GPU; unknown members are "?" then.
    """

    index: int
    uuid: str
    name: str
    address: str
    driver: str
    mig: bool
    compute_mode: int
    virtualization: int
    failed: ProbeRefusedError | None = None


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process with a context on a GPU. `name`, `user`: "?" if the process is gone, or in another PID namespace."""

    pid: int
    kind: str
    name: str
    user: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name}, user {self.user}, {self.kind})"


class Nvml:
    """The open library. Every method raises ProbeRefusedError."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def gpus(self) -> list[Gpu]:
        """Return all GPUs in the driver's order. A lost GPU does not keep other GPUs from being listed."""
        library = self._library
        with self._translated("listing GPUs"):
            count = library.nvmlDeviceGetCount()
            driver = str(library.nvmlSystemGetDriverVersion())
        return [self._gpu(index, driver) for index in range(count)]

    def _gpu(self, index: int, driver: str) -> Gpu:
        try:
            return self._described(index, driver)
        except ProbeRefusedError as error:
            return Gpu(
                index=index, uuid="?", name="?", address="?", driver=driver, mig=False, compute_mode=0,
                virtualization=0, failed=error,
            )  # fmt: skip

    def _described(self, index: int, driver: str) -> Gpu:
        library = self._library
        with self._translated(f"GPU {index}"):
            handle = library.nvmlDeviceGetHandleByIndex(index)
            pci = library.nvmlDeviceGetPciInfo(handle)
            return Gpu(
                index=index,
                uuid=str(library.nvmlDeviceGetUUID(handle)),
                name=str(library.nvmlDeviceGetName(handle)),
                address=f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
                driver=driver,
                # A pending change also counts: after a reset, the GPU would differ from what is measured now.
                mig=any(self._optional(library.nvmlDeviceGetMigMode, handle, [0, 0])),
                compute_mode=self._optional(library.nvmlDeviceGetComputeMode, handle, library.NVML_COMPUTEMODE_DEFAULT),
                virtualization=self._optional(
                    library.nvmlDeviceGetVirtualizationMode, handle, library.NVML_GPU_VIRTUALIZATION_MODE_NONE
                ),
            )

    def processes(self, gpu: Gpu) -> list[GpuProcess]:
        """Return the processes that have a context on the GPU now, by process id."""
        library = self._library
        kinds = {
            "graphics": library.nvmlDeviceGetGraphicsRunningProcesses,
            "MPS": library.nvmlDeviceGetMPSComputeRunningProcesses,
            "compute": library.nvmlDeviceGetComputeRunningProcesses,
        }
        found: dict[int, GpuProcess] = {}
        with self._translated(f"processes of GPU {gpu.index}"):
            handle = library.nvmlDeviceGetHandleByIndex(gpu.index)
            for kind, listed in kinds.items():
                for entry in self._optional(listed, handle, []):
                    pid = int(entry.pid)
                    found[pid] = GpuProcess(pid=pid, kind=kind, name=_name(pid), user=_user(pid))
        return [found[pid] for pid in sorted(found)]

    def check(self, gpu: Gpu, ours: Sequence[int] = ()) -> None:
        """Refuse a GPU on which a measurement would mean nothing. `ours`: processes that do not count."""
        if gpu.failed is not None:
            raise gpu.failed
        library = self._library
        where = f"GPU {gpu.index} ({gpu.uuid})"
        if gpu.mig:
            raise refuse(
                Refusal.MIG, f"{where} is in MIG mode, or will be after a reset; its instances do not share an engine"
            )
        if gpu.virtualization not in (
            library.NVML_GPU_VIRTUALIZATION_MODE_NONE,
            library.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH,
        ):
            raise refuse(
                Refusal.VIRTUALISED,
                f"{where} is virtualised (mode {gpu.virtualization}), so only the vGPU scheduler could be measured",
            )
        if gpu.compute_mode != library.NVML_COMPUTEMODE_DEFAULT:
            raise refuse(
                Refusal.COMPUTE_MODE,
                f"{where} has compute mode {gpu.compute_mode} (2: prohibited, 3: exclusive process), but the probe"
                " needs two processes; it does not change the mode",
            )
        self.check_idle(gpu, ours)

    def check_idle(self, gpu: Gpu, ours: Sequence[int] = ()) -> None:
        """Refuse a GPU that has any process except `ours`."""
        others = [process for process in self.processes(gpu) if process.pid not in ours]
        if others:
            raise refuse(
                Refusal.BUSY,
                f"GPU {gpu.index} ({gpu.uuid}) is in use: {', '.join(map(str, others))}; probe an idle one",
            )

    def _optional(self, getter: Any, handle: Any, missing: Any) -> Any:
        """Return the result of a getter; `missing` if the GPU or the driver does not support the getter."""
        library = self._library
        try:
            return getter(handle)
        except library.NVMLError as error:
            if error.value in (library.NVML_ERROR_NOT_SUPPORTED, library.NVML_ERROR_FUNCTION_NOT_FOUND):
                return missing
            raise

    @contextlib.contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._library.NVMLError as error:
            raise _refusal(self._library, error, what) from None


@contextlib.contextmanager
def opened(library: Any = None) -> Iterator[Nvml]:
    """Open NVML while the body runs. ProbeRefusedError. `library`: a module to use instead of pynvml."""
    if library is None:
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            raise refuse(
                Refusal.BINDING_MISSING,
                "pynvml is not installed; install vgpumgr with its extra `agent`, see docs/probe-gpu.md",
            ) from None
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        raise _refusal(library, error, "opening NVML") from None
    try:
        yield Nvml(library)
    finally:
        with contextlib.suppress(library.NVMLError):  # after an error in the body, NVML may already be closed
            library.nvmlShutdown()


def chosen(gpus: Sequence[Gpu], names: Sequence[str]) -> list[Gpu]:
    """Return the GPUs with these indexes or UUIDs, each once; all GPUs if no names are given. ProbeRefusedError."""
    if not gpus:
        raise refuse(Refusal.NO_GPU, "the driver is loaded and lists no GPU")
    if not names:
        return list(gpus)
    found: list[Gpu] = []
    for name in names:
        meant = [gpu for gpu in gpus if name == str(gpu.index) or (name == gpu.uuid and gpu.failed is None)]
        if not meant:
            known = ", ".join(f"index {gpu.index} = {gpu.uuid}" for gpu in gpus)
            raise refuse(Refusal.GPU_UNKNOWN, f"no GPU {name[:80]!r}; known: {known}")
        found += [gpu for gpu in meant if gpu not in found]
    return found


def _refusal(library: Any, error: Any, what: str) -> ProbeRefusedError:
    codes = {
        library.NVML_ERROR_LIBRARY_NOT_FOUND: (Refusal.NO_DRIVER, "libnvidia-ml.so.1 is missing; install the driver"),
        library.NVML_ERROR_DRIVER_NOT_LOADED: (Refusal.NO_DRIVER, "the nvidia module is not loaded; `modprobe nvidia`"),
        library.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
            Refusal.VERSION_MISMATCH,
            "library and kernel module are of different releases; reboot, or load the installed module",
        ),
        library.NVML_ERROR_NO_PERMISSION: (Refusal.NOT_PERMITTED, "run this as root"),
        library.NVML_ERROR_GPU_IS_LOST: (Refusal.GPU_LOST, "it has fallen off the bus"),
        library.NVML_ERROR_RESET_REQUIRED: (Refusal.GPU_LOST, "it needs a reset, which vgpumgr does not do"),
        library.NVML_ERROR_GPU_NOT_FOUND: (Refusal.GPU_LOST, "it is gone"),
    }
    if error.value in codes:
        code, todo = codes[error.value]
        return refuse(code, f"{what}: {todo}")
    return refuse(Refusal.NVML_FAILED, f"{what}: {error}; see `nvidia-smi`, which uses the same library")


def _name(pid: int) -> str:
    try:
        return (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "?"


def _user(pid: int) -> str:
    try:
        owner = (PROC / str(pid)).stat().st_uid
    except OSError:
        return "?"
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return str(owner)
