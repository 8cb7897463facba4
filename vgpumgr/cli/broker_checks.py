# SPDX-License-Identifier: Apache-2.0
"""The checks of `host doctor` for GPUs that are set aside for processes: settings, programs, device, unit, broker."""

from collections.abc import Iterator
from pathlib import Path

from vgpumgr.broker.control import Control
from vgpumgr.broker.places import LAUNCHER
from vgpumgr.cli.checks import Finding, fail, ok, warn
from vgpumgr.cli.privilege import to_be_permitted
from vgpumgr.control.executor_settings import DIRECTORY, ExecutorSettingsError, GpuSettings, load
from vgpumgr.control.sysfs import HostPaths, Sysfs
from vgpumgr.errors import VgpumgrError

PROGRAMS = ("vgpu-broker", "vgpu-supervisor", "vgpu-child", "libvgpu-opencl.so", LAUNCHER)
RUN_DIRECTORY = Path("run/vgpumgr-brokers")
TEMPLATE = "vgpumgr-broker@.service"
UNITS = (Path("etc/systemd/system"), Path("usr/lib/systemd/system"), Path("lib/systemd/system"))


def brokers(root: Path) -> Iterator[Finding]:
    """Yield findings about each GPU that is set aside for processes; nothing if there is no such GPU."""
    sysfs = Sysfs(HostPaths(root))
    try:
        settings = load(sysfs.paths.agent_settings)
    except ExecutorSettingsError:  # the check of executors reports this
        return
    gpus = sorted(settings.for_processes())
    if not gpus:
        return
    yield from _host(root)
    for gpu in gpus:
        yield _device(root, gpu, settings.of(gpu), sysfs)
        yield _broker(root, gpu)


def _host(root: Path) -> Iterator[Finding]:
    missing = [name for name in PROGRAMS if not (root / DIRECTORY.relative_to("/") / name).exists()]
    if missing:
        todo = "`make -C compute install`, or the role"
        yield fail("broker programs", f"{DIRECTORY / missing[0]} is missing", todo)
    else:
        yield ok("broker programs", str(DIRECTORY))
    if (root / "run/systemd/system").is_dir() and not any((root / path / TEMPLATE).exists() for path in UNITS):
        yield fail("broker unit", f"{TEMPLATE} is not installed", "install it with the role")


def _device(root: Path, gpu: str, settings: GpuSettings, sysfs: Sysfs) -> Finding:
    check = f"processes {gpu}"
    where = sysfs.paths.agent_settings
    try:
        shared = gpu in sysfs.gpus()
    except VgpumgrError:  # vgpumgr.ko is not loaded, so it shares no GPU
        shared = False
    if shared:
        todo = f"unbind it from vgpumgr, or remove its workload from {where}"
        return fail(check, "set aside for processes, but vgpumgr.ko shares it among VMs", todo)
    device = f"dev/nvidia{settings.executor.nvidia}"
    if not (root / device).exists():
        todo = f"load NVIDIA's driver, or correct executor.nvidia in {where}"
        return fail(check, f"/{device} is missing", todo)
    return ok(check, f"set aside, /{device}")


def _broker(root: Path, gpu: str) -> Finding:
    check = f"broker {gpu}"
    directory = root / RUN_DIRECTORY / gpu
    try:
        if not directory.is_dir():
            return ok(check, "none: no claim for processes is on this GPU")
        shown = Control(directory).show()
    except PermissionError as error:
        return warn(check, f"not checked: {error.strerror}", to_be_permitted())
    except VgpumgrError as error:
        if error.code == "permission.denied":
            return warn(check, f"not checked: {error}", to_be_permitted())
        todo = f"see `journalctl --unit=vgpumgr-broker@{gpu}`; the agent starts it again"
        return fail(check, f"the broker does not answer: {error}", todo)
    try:
        tenants = [tenant for tenant in shown["tenants"] if not tenant["leaving"]]
        down = [tenant["name"] for tenant in tenants if tenant["supervisor"]["state"] != "up"]
    except (KeyError, TypeError):
        return fail(check, "the broker's answer is of another release", f"restart vgpumgr-broker@{gpu}")
    if down:
        return warn(check, f"{len(down)} of {len(tenants)} claims are not served, {down[0]} first", "see its log")
    return ok(check, f"serves {len(tenants)} claims")
