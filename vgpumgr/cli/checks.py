# SPDX-License-Identifier: Apache-2.0
"""The checks of `host doctor`. Every check returns what it found, and raises nothing for an expected failure."""

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from vgpumgr.cli.agent_socket import HELPER_SOCKET, HOOK_SOCKET, exchange
from vgpumgr.cli.privilege import as_root, to_be_permitted
from vgpumgr.control.executor_settings import ExecutorSettingsError, load
from vgpumgr.control.listed import adoptable, listed, unusable
from vgpumgr.control.sysfs import DRIVER, HostPaths, Sysfs
from vgpumgr.errors import AgentUnreachableError, NotFoundError, NotPermittedError, VgpumgrError

ABI_MAJOR = "2"
PREEMPT = Path("sys/kernel/debug/sched/preempt")
HOOK = Path("etc/libvirt/hooks/qemu.d/vgpumgr")
PROBE_S = 3.0
VIRSH_S = 10.0
NO_VIRSH = "virsh is not installed"
_NOBODY = "00000000-0000-0000-0000-000000000000"
_HOOK_PATH = re.compile(r"^(PYTHON|CLIENT)=(/\S+)$", re.MULTILINE)


class Grade(IntEnum):
    """Severity of a finding; a larger value is worse."""

    OK = 0
    WARN = 1
    FAIL = 2

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`todo`: what to do about the finding, "" if there is nothing to do."""

    check: str
    grade: Grade
    found: str
    todo: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check=check, grade=Grade.OK, found=found)


def warn(check: str, found: str, todo: str) -> Finding:
    return Finding(check=check, grade=Grade.WARN, found=found, todo=todo)


def fail(check: str, found: str, todo: str) -> Finding:
    return Finding(check=check, grade=Grade.FAIL, found=found, todo=todo)


def local_checks(root: Path, *, virsh: Callable[[], str | None]) -> Iterator[Finding]:
    """Check a host. Tests pass another `root`. `virsh`: why libvirt does not answer, None if it does."""
    if has_gpus_for_vms(root):
        yield module(root)
        yield from kernels(root)
        yield from gpus(root)
        yield from listed_gpus(root)
        yield preemption(root)
    else:
        yield ok("vms", "all GPUs are set aside for processes: neither module, hook nor libvirt is needed")
    yield agent_socket("agent", root / HOOK_SOCKET, "vgpumgr-agent")
    yield agent_socket("helper", root / HELPER_SOCKET, "vgpumgr-helper")
    if has_gpus_for_vms(root):
        yield hook(root)
        yield libvirt(virsh())


def has_gpus_for_vms(root: Path) -> bool:
    """Return False if this host's settings set GPUs aside for processes, and no GPU is configured or bound for VMs."""
    sysfs = Sysfs(HostPaths(root))
    try:
        aside = load(sysfs.paths.agent_settings).for_processes()
        named = [*listed(sysfs.paths), *adoptable(sysfs.paths)]
    except (ExecutorSettingsError, OSError):  # another check reports this
        return True
    try:
        bound = sysfs.gpus()
    except VgpumgrError:  # the module is not loaded
        bound = []
    return bool(named or bound or not aside)


def libvirt(refused: str | None) -> Finding:
    """Return whether libvirt answers. `refused`: why it does not."""
    if refused is None:
        return ok("libvirt", "answers")
    todo = "install libvirt-clients" if refused == NO_VIRSH else as_root("start libvirt's daemon")
    return fail("libvirt", refused, todo)


def module(root: Path) -> Finding:
    """Whether vgpumgr.ko is loaded."""
    directory = root / "sys/module/vgpumgr"
    if not directory.is_dir():
        return fail("module", "vgpumgr.ko is not loaded", "`modprobe vgpumgr`; if that fails, `dkms status vgpumgr`")
    return ok("module", f"vgpumgr.ko {_read(directory / 'version') or '(no version)'} is loaded")


def kernels(root: Path) -> Iterator[Finding]:
    """Check that each kernel this host may boot has the module; report nothing if those kernels are not known."""
    modules = root / "lib/modules"
    installed = sorted(path.name for path in modules.glob("*") if (root / f"boot/vmlinuz-{path.name}").exists())
    lacking = [
        release for release in installed if "/vgpumgr.ko" not in (_read(modules / release / "modules.dep") or "")
    ]
    for release in lacking:
        check, found = f"kernel {release}", "vgpumgr.ko is not built for it: after a boot into it, no VM gets a slice"
        if "CONFIG_VFIO_MDEV=" not in (_read(root / f"boot/config-{release}") or "CONFIG_VFIO_MDEV="):
            yield warn(check, "it has no mediated devices (CONFIG_VFIO_MDEV)", f"remove linux-image-{release}")
        elif not (modules / release / "build").exists():
            yield warn(check, found, f"`apt-get install linux-headers-{release}`, and those of its flavour")
        else:
            yield warn(check, found, f"`dkms install vgpumgr/VERSION -k {release}` shows why")
    if installed and not lacking:
        yield ok("kernels", f"the module is built for {', '.join(installed)}")


def gpus(root: Path) -> Iterator[Finding]:
    """Check mediated devices, and the bound GPUs with their ABI version, policy and access rights."""
    sysfs = Sysfs(HostPaths(root))
    try:
        found = sysfs.gpus()
    except VgpumgrError as error:
        yield fail("mdev", str(error), "`modprobe mdev`; the kernel needs CONFIG_VFIO_MDEV")
        return
    yield ok("mdev", "the kernel has mediated devices")
    if not found:
        yield fail("gpus", "no GPU is bound to vgpumgr.ko", "name the host's GPUs to the role, or bind one by hand")
        return
    yield ok("gpus", ", ".join(_with_driver(sysfs, gpu) for gpu in found))
    for gpu in found:
        yield _abi(sysfs, gpu)
        yield _policy(sysfs, gpu)
        yield _attach(sysfs, gpu)


def _with_driver(sysfs: Sysfs, gpu: str) -> str:
    """Return the GPU's name. For a GPU that vgpumgr.ko has adopted, add the name of its vendor's driver."""
    driver = sysfs.driver(gpu)
    return gpu if driver in (None, DRIVER) else f"{gpu} (adopted, driver {driver})"


def listed_gpus(root: Path) -> Iterator[Finding]:
    """Report what keeps a GPU of the host's configuration from being shared; nothing if all these GPUs are shared."""
    for each in unusable(Sysfs(HostPaths(root)), bound_only=True):
        yield fail(f"gpu {each.gpu}".rstrip(), f"{each.found} ({each.code})", each.todo)


def _abi(sysfs: Sysfs, gpu: str) -> Finding:
    check = f"abi {gpu}"
    try:
        version = sysfs.read_gpu(gpu, "abi_version")
    except VgpumgrError as error:
        return _unread(check, error)
    if version.partition(".")[0] != ABI_MAJOR:
        return fail(
            check,
            f"abi_version {version}, this release needs {ABI_MAJOR}.x",
            "install the same release of module and agent",
        )
    return ok(check, f"abi_version {version}")


def _policy(sysfs: Sysfs, gpu: str) -> Finding:
    """Check how the GPU is shared. A module older than abi_version 1.1 has one policy and no reservations."""
    check = f"policy {gpu}"
    try:
        policy = sysfs.read_gpu(gpu, "policy")
        if policy == "fixed_share":
            return ok(check, f"{policy}, {sysfs.read_gpu(gpu, 'places')} places")
        if policy == "best_effort":
            return ok(
                check, f"{policy}, up to {sysfs.read_gpu(gpu, 'reserve_limit_permille')} permille for reservations"
            )
    except NotFoundError:
        return ok(check, "best_effort, no reservations")
    except VgpumgrError as error:
        return _unread(check, error)
    return ok(check, policy)


def _attach(sysfs: Sysfs, gpu: str) -> Finding:
    check = f"attach {gpu}"
    try:
        mode = sysfs.read_gpu(gpu, "attach")
    except VgpumgrError as error:
        return _unread(check, error)
    if mode != "permit":
        path = sysfs.paths.gpu(gpu) / "attach"
        return fail(check, f"attach={mode}: a VM opens a slice without a claim", f"`echo permit >{path}`")
    return ok(check, "a VM opens a slice only with a permit")


def _unread(check: str, error: VgpumgrError) -> Finding:
    """Report an attribute that this release needs and could not read."""
    denied = isinstance(error, NotPermittedError)
    return fail(check, str(error), to_be_permitted() if denied else "load the vgpumgr.ko of this release")


def preemption(root: Path) -> Finding:
    """Check that the kernel is preemptible. With voluntary preemption only, runs overrun by milliseconds."""
    if _read(root / "sys/kernel/realtime") == "1":
        return ok("preemption", "real-time kernel")
    modes = _read(root / PREEMPT)
    todo = "boot with preempt=full, or `echo full >/sys/kernel/debug/sched/preempt`"
    if modes is not None:
        if "(full)" in modes.split():
            return ok("preemption", "full")
        return warn("preemption", f"{modes}: runs may last milliseconds longer than their timeslice", todo)
    version = (_read(root / "proc/sys/kernel/version") or "").split()
    if "PREEMPT" in version or "PREEMPT_RT" in version:
        return ok("preemption", "built in")
    if "PREEMPT_DYNAMIC" in version:
        return _untold_preemption(root)
    return warn("preemption", "this kernel preempts voluntarily at most", "use a kernel with PREEMPT_DYNAMIC")


def _untold_preemption(root: Path) -> Finding:
    try:
        (root / PREEMPT).read_bytes()
        why = "not readable"
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        if isinstance(error, PermissionError):
            return warn("preemption", f"unknown: /{PREEMPT}: {why}", to_be_permitted())
    todo = as_root("`mount -t debugfs debugfs /sys/kernel/debug`")
    return warn("preemption", f"unknown: /{PREEMPT}: {why}", todo)


def agent_socket(check: str, path: Path, unit: str) -> Finding:
    """Check that the socket is answered. A refusal counts as an answer."""
    # The hook's only request that changes nothing. The root helper does not know it; its refusal is an answer, too.
    request = {
        "v": 1,
        "op": "start",
        "domain": "",
        "vm_uuid": _NOBODY,
        "devices": [],
        "metadata": [],
        "reason": "-",
    }
    try:
        exchange(path, request, limit_s=PROBE_S)
    except AgentUnreachableError as error:
        denied = isinstance(error.__cause__, PermissionError)
        todo = to_be_permitted() if denied else as_root(f"`systemctl status {unit}`")
        return fail(check, str(error).partition(";")[0], todo)
    return ok(check, f"answers at {path}")


def hook(root: Path) -> Finding:
    """Check that libvirt would run our hook, and that the hook finds the files it needs."""
    path = root / HOOK
    try:
        executable = bool(path.stat().st_mode & 0o111)
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if isinstance(error, PermissionError):
            return fail("hook", f"{path}: {reason}", to_be_permitted())
        return fail(
            "hook", f"{path}: {reason}", "install it with the role, then reload libvirt; until then VMs start unchecked"
        )
    if not executable:
        return fail("hook", f"{path} is not executable, so libvirt skips it", f"`chmod 755 {path}`")
    for name, needed in _HOOK_PATH.findall(text):
        if not (root / needed.lstrip("/")).exists():
            return fail("hook", f"{path}: its {name} {needed} is missing", "install vgpumgr's agent again")
    return ok("hook", f"{path} is in place")


def virsh_refusal() -> str | None:
    """Return why virsh cannot connect to the system's libvirt, None if it can."""
    try:
        asked = subprocess.run(
            ["virsh", "-q", "-c", "qemu:///system", "version"],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=VIRSH_S,
        )
    except FileNotFoundError:
        return NO_VIRSH
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"virsh did not answer: {type(error).__name__}"
    if asked.returncode:
        return " ".join(asked.stderr.split())[:200] or f"virsh exits with {asked.returncode}"
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
