# SPDX-License-Identifier: Apache-2.0
"""The GPUs that this host's configuration wants shared by our module, and why one of them cannot be shared.

`/etc/vgpumgr/gpus` lists the GPUs that are bound to the module, one PCI address a line. udev's rule 60-vgpumgr.rules
reads the same file when a function appears. GPUs that stay with their vendor's driver, and that the module adopts, are
in agent.toml. This module only inspects. The agent's helper runs udev's rule again or adopts a GPU, and `host doctor`
informs people.
"""

from dataclasses import dataclass
from enum import StrEnum

from vgpumgr.control.executor_settings import ExecutorSettingsError, load
from vgpumgr.control.sysfs import DRIVER, HostPaths, Sysfs, is_pci_address
from vgpumgr.errors import VgpumgrError

_SHOWN = 40


class Trouble(StrEnum):
    """Why a listed GPU cannot be shared. Other programs match these strings: never change a string or its meaning."""

    UNREADABLE = "gpus.unreadable"
    MALFORMED = "gpu.malformed"
    ABSENT = "gpu.absent"
    HELD = "gpu.held"
    MODULE_MISSING = "module.missing"
    UNBOUND = "gpu.unbound"
    TWICE = "gpu.twice"
    DRIVERLESS = "gpu.driverless"
    UNADOPTED = "gpu.unadopted"
    ENGINE = "gpu.engine"
    OPEN_TO_ALL = "gpu.open_to_all"


SETTINGS = frozenset({Trouble.ENGINE, Trouble.OPEN_TO_ALL})
"""Reasons that writing an attribute of the GPU may remove."""

MENDABLE = frozenset({Trouble.MODULE_MISSING, Trouble.UNBOUND, Trouble.UNADOPTED}) | SETTINGS
"""Reasons that binding or adopting the GPU again may remove. A GPU is never taken from another driver."""


@dataclass(frozen=True, kw_only=True)
class Unusable:
    """A listed GPU that cannot be shared. `gpu`: "" if the list itself is at fault. `todo`: what to do about it."""

    gpu: str
    code: Trouble
    found: str
    todo: str

    @property
    def reason(self) -> str:
        """What was found and what to do, in one line."""
        about = f"GPU {self.gpu}: " if self.gpu else ""
        return f"{about}{self.found}; {self.todo}"

    def __str__(self) -> str:
        return f"{self.reason} ({self.code})"


def listed(paths: HostPaths) -> list[str]:
    """Return the entries of the list, in order; none if there is no list. OSError."""
    try:
        text = paths.listed_gpus.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return list(dict.fromkeys(line for line in text.splitlines() if line.strip() and not line.startswith("#")))


def adoptable(paths: HostPaths) -> dict[str, str]:
    """Return the drivers of the GPUs that stay with their vendor's driver, by address.

    If the settings are unreadable, there are none. `host doctor` and the start of an executor report the settings.
    """
    try:
        settings = load(paths.agent_settings)
    except ExecutorSettingsError:
        return {}
    return {gpu: found.driver for gpu, found in settings.gpus.items() if found.driver}


def unusable(sysfs: Sysfs, *, bound_only: bool = False) -> list[Unusable]:
    """Return every configured GPU that cannot be shared at present, with the reason.

    `bound_only`: check only that the GPU is bound or adopted, not its engine and access rights.
    """
    try:
        gpus = listed(sysfs.paths)
    except OSError as error:
        return [
            Unusable(
                gpu="",
                code=Trouble.UNREADABLE,
                found=f"{sysfs.paths.listed_gpus}, which lists this host's GPUs, cannot be read: {error.strerror}",
                todo="make it readable for all users",
            )
        ]
    check = _binding if bound_only else trouble
    gpus += [gpu for gpu in adoptable(sysfs.paths) if gpu not in gpus]
    return [found for gpu in gpus if (found := check(sysfs, gpu)) is not None]


def trouble(sysfs: Sysfs, gpu: str) -> Unusable | None:
    """Return why a GPU cannot be shared, None if it can."""
    return _binding(sysfs, gpu) or _engine(sysfs, gpu) or _attach(sysfs, gpu)


def _binding(sysfs: Sysfs, gpu: str) -> Unusable | None:
    paths = sysfs.paths

    def found(code: Trouble, what: str, todo: str) -> Unusable:
        return Unusable(gpu=gpu, code=code, found=what, todo=todo)

    if not is_pci_address(gpu):
        return Unusable(
            gpu=ascii(gpu[:_SHOWN]),
            code=Trouble.MALFORMED,
            found=f"a line of {paths.listed_gpus} that is not a PCI address",
            todo="write it as `lspci -D` does, like 0000:3b:00.0",
        )
    kept_by = adoptable(paths).get(gpu)
    where = paths.agent_settings if kept_by else paths.listed_gpus
    if not paths.pci_device(gpu).is_dir():
        return found(Trouble.ABSENT, "this host has no such PCI function", f"see `lspci -D`, and correct {where}")
    if kept_by:
        return _adoption(sysfs, gpu, kept_by)
    driver = sysfs.driver(gpu)
    if driver not in (None, DRIVER):
        todo = f"stop the programs that use it and unbind it, or remove it from {paths.listed_gpus}"
        return found(Trouble.HELD, f"the driver {driver} has it", todo)
    if driver == DRIVER:
        return None
    if not paths.module.is_dir():
        return found(Trouble.MODULE_MISSING, "vgpumgr.ko is not loaded, and udev did not load it", "`modprobe vgpumgr`")
    return found(Trouble.UNBOUND, "vgpumgr.ko does not have it", "see dmesg, and check that udev has 60-vgpumgr.rules")


def _adoption(sysfs: Sysfs, gpu: str, wanted: str) -> Unusable | None:
    paths = sysfs.paths
    driver = sysfs.driver(gpu)

    def found(code: Trouble, what: str, todo: str) -> Unusable:
        return Unusable(gpu=gpu, code=code, found=what, todo=todo)

    if _is_listed(paths, gpu):
        what = f"{paths.listed_gpus} gives it to {DRIVER}, but {paths.agent_settings} says that {wanted} keeps it"
        return found(Trouble.TWICE, what, "remove it from one of them")
    if driver is None:
        what = f"no driver has it, but {paths.agent_settings} says that {wanted} does"
        return found(Trouble.DRIVERLESS, what, f"`modprobe {wanted}`; if the driver does not bind it, see dmesg")
    if driver != wanted:
        what = f"the driver {driver} has it, but {paths.agent_settings} says that {wanted} does"
        return found(Trouble.HELD, what, f"correct that, or unbind it from {driver} and bind it to {wanted}")
    if not paths.module.is_dir():
        return found(Trouble.MODULE_MISSING, "vgpumgr.ko is not loaded, and udev did not load it", "`modprobe vgpumgr`")
    if gpu not in sysfs.gpus():
        return found(Trouble.UNADOPTED, "vgpumgr.ko has not adopted it", "see dmesg, and the agent's log")
    return None


def _is_listed(paths: HostPaths, gpu: str) -> bool:
    try:
        return gpu in listed(paths)
    except OSError:  # an unreadable list is reported separately
        return False


def _engine(sysfs: Sysfs, gpu: str) -> Unusable | None:
    """Return a wrong engine. Unreadable settings are not reported here; the start of an executor reports them."""
    try:
        wanted = load(sysfs.paths.agent_settings).of(gpu).engine
        present = sysfs.read_gpu(gpu, "engine") if wanted else ""
    except (ExecutorSettingsError, VgpumgrError):
        return None
    if wanted == present:
        return None
    return Unusable(
        gpu=gpu,
        code=Trouble.ENGINE,
        found=f"its engine is {present}, but {sysfs.paths.agent_settings} asks for {wanted}",
        todo="stop the VMs that use it, and unbind it from vgpumgr once; the agent binds it again",
    )


def _attach(sysfs: Sysfs, gpu: str) -> Unusable | None:
    try:
        mode = sysfs.read_gpu(gpu, "attach")
    except VgpumgrError as error:  # the GPU is being bound or unbound
        return Unusable(gpu=gpu, code=Trouble.UNBOUND, found=f"vgpumgr.ko is not ready: {error}", todo="see dmesg")
    if mode == "permit":
        return None
    return Unusable(
        gpu=gpu,
        code=Trouble.OPEN_TO_ALL,
        found=f"attach={mode}: a VM opens a slice without a claim",
        todo=f"`echo permit >{sysfs.paths.gpu(gpu) / 'attach'}`",
    )
