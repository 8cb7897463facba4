# SPDX-License-Identifier: Apache-2.0
"""`host doctor` on a fake root: a healthy host, and each possible problem."""

import contextlib
import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Cli
from tests.unit.cli.fake_content import GPU, MADE
from vgpumgr.cli import checks
from vgpumgr.wire.problem import Code

NOBODY = 65534


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def serve(path: Path) -> socket.socket:
    """A socket that answers every line with a refusal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.makefile("rb").readline()
                connection.sendall(b'{"ok": false, "code": "request.invalid", "reason": "no"}\n')

    threading.Thread(target=answer, daemon=True).start()
    return listener


@contextlib.contextmanager
def healthy(made: Path) -> Iterator[Path]:
    """A healthy host."""
    write(made / "sys/module/vgpumgr/version", "0.1.0\n")
    (made / "sys/class/mdev_bus" / GPU).mkdir(parents=True)
    write(made / f"sys/bus/pci/devices/{GPU}/vgpu/abi_version", "2.0\n")
    write(made / f"sys/bus/pci/devices/{GPU}/vgpu/attach", "permit\n")
    write(made / "sys/kernel/debug/sched/preempt", "none voluntary (full) lazy\n")
    write(made / "usr/bin/python3", "")
    write(made / "usr/lib/client.py", "")
    hook = "#!/bin/sh\nPYTHON=/usr/bin/python3\nCLIENT=/usr/lib/client.py\n"
    write(made / "etc/libvirt/hooks/qemu.d/vgpumgr", hook, 0o755)
    listeners = [serve(made / "run/vgpumgr/hook.sock"), serve(made / "run/vgpumgr/helper.sock")]
    yield made
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with healthy(tmp_path / "root") as made:
        yield made


CLOSED = (
    f"sys/bus/pci/devices/{GPU}/vgpu/abi_version",
    f"sys/bus/pci/devices/{GPU}/vgpu/attach",
    "sys/kernel/debug/sched/preempt",
    "run/vgpumgr/hook.sock",
    "run/vgpumgr/helper.sock",
    "etc/libvirt/hooks/qemu.d/vgpumgr",
)


@pytest.fixture
def closed(cli: Cli) -> Iterator[Path]:
    """The same host for a user who may not open any of the important files."""
    uid = os.geteuid()
    with tempfile.TemporaryDirectory() as directory, healthy(Path(directory) / "root") as made:
        write(made / "proc/sys/kernel/version", "#1 SMP PREEMPT_DYNAMIC Debian\n")
        Path(directory).chmod(0o755)
        examine(cli, made)  # load all lazy imports before access is removed
        for name in CLOSED:
            (made / name).chmod(0)
        if uid == 0:
            os.seteuid(NOBODY)
        yield made
        os.seteuid(uid)


def examine(cli: Cli, root: Path, *more: str) -> tuple[int, dict[str, tuple[str, str, str]]]:
    result = cli("host", "doctor", "--root", str(root), "--host", "gpu-a", "-o", "json", *more)
    assert result.err == ""
    findings = json.loads(result.out)
    return result.status, {entry["check"]: (entry["grade"], entry["found"], entry["todo"]) for entry in findings}


def test_a_host_where_all_is_well(cli: Cli, root: Path) -> None:
    status, findings = examine(cli, root)
    assert status == 0
    assert {grade for grade, _, _ in findings.values()} == {"ok"}
    assert list(findings) == [
        "module",
        "mdev",
        "gpus",
        f"abi {GPU}",
        f"policy {GPU}",
        f"attach {GPU}",
        "preemption",
        "agent",
        "helper",
        "hook",
        "libvirt",
        "report",
    ]
    assert findings["report"][1] == "the last one was 10 s ago"


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ({}, "best_effort, no reservations"),
        ({"policy": "best_effort"}, "best_effort, no reservations"),
        (
            {"policy": "best_effort", "reserve_limit_permille": "600"},
            "best_effort, up to 600 permille for reservations",
        ),
        ({"policy": "equal_share"}, "equal_share"),
        ({"policy": "fixed_share", "places": "8"}, "fixed_share, 8 places"),
    ],
)
def test_the_policy_of_a_gpu_is_named(cli: Cli, root: Path, attributes: dict[str, str], found: str) -> None:
    for name, value in attributes.items():
        write(root / f"sys/bus/pci/devices/{GPU}/vgpu" / name, f"{value}\n")
    _, findings = examine(cli, root)
    assert findings[f"policy {GPU}"] == ("ok", found, "")


def test_the_table_says_what_to_do(cli: Cli, root: Path) -> None:
    write(root / "sys/kernel/debug/sched/preempt", "none (voluntary) full\n")
    result = cli("host", "doctor", "--root", str(root), "--host", "gpu-a")
    assert result.status == 8
    assert result.out.splitlines()[0].split() == ["RESULT", "CHECK", "FOUND"]
    assert (
        "warn    preemption           none (voluntary) full: runs may last milliseconds longer than their timeslice;"
        " boot with preempt=full, or `echo full >/sys/kernel/debug/sched/preempt`"
    ) in result.out.splitlines()


def hook_of(root: Path) -> Path:
    return root / "etc/libvirt/hooks/qemu.d/vgpumgr"


BREAKS: list[tuple[str, str, Callable[[Path], None], str]] = [
    ("module", "fail", lambda root: shutil.rmtree(root / "sys/module"), "is not loaded"),
    ("mdev", "fail", lambda root: shutil.rmtree(root / "sys/class"), "no mediated devices"),
    ("gpus", "fail", lambda root: (root / "sys/class/mdev_bus" / GPU).rmdir(), "no GPU is bound"),
    (
        f"abi {GPU}",
        "fail",
        lambda root: write(root / f"sys/bus/pci/devices/{GPU}/vgpu/abi_version", "1.1\n"),
        "abi_version 1.1, this release needs 2.x",
    ),
    (
        f"abi {GPU}",
        "fail",
        lambda root: (root / f"sys/bus/pci/devices/{GPU}/vgpu/abi_version").unlink(),
        "read abi_version",
    ),
    (
        f"attach {GPU}",
        "fail",
        lambda root: write(root / f"sys/bus/pci/devices/{GPU}/vgpu/attach", "any\n"),
        "a VM opens a slice without a claim",
    ),
    (
        "preemption",
        "warn",
        lambda root: write(root / "sys/kernel/debug/sched/preempt", "(none) voluntary full"),
        "(none) voluntary full",
    ),
    ("preemption", "warn", lambda root: shutil.rmtree(root / "sys/kernel"), "preempts voluntarily at most"),
    ("agent", "fail", lambda root: (root / "run/vgpumgr/hook.sock").unlink(), "No such file"),
    ("helper", "fail", lambda root: (root / "run/vgpumgr/helper.sock").unlink(), "No such file"),
    ("hook", "fail", lambda root: hook_of(root).unlink(), "no such file"),
    ("hook", "fail", lambda root: hook_of(root).chmod(0o644), "is not executable"),
    ("hook", "fail", lambda root: (root / "usr/lib/client.py").unlink(), "its CLIENT /usr/lib/client.py is missing"),
]


@pytest.mark.parametrize(("check", "grade", "spoil", "words"), BREAKS, ids=[f"{b[0]}-{b[3]}" for b in BREAKS])
def test_what_is_wrong_is_found_with_what_to_do(
    cli: Cli, root: Path, check: str, grade: str, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(root)
    status, findings = examine(cli, root)
    assert status == {"warn": 8, "fail": 1}[grade]
    assert findings[check][0] == grade
    assert words in findings[check][1]
    assert findings[check][2]


def kernel(
    root: Path, release: str, *, built: bool, headers: bool = True, config: str = "CONFIG_VFIO_MDEV=m\n"
) -> None:
    """Add a kernel that the host may boot."""
    write(root / f"boot/vmlinuz-{release}", "")
    write(root / f"boot/config-{release}", config)
    modules = root / "lib/modules" / release
    write(modules / "modules.dep", "updates/dkms/vgpumgr.ko.xz: kernel/mdev.ko.xz\n" if built else "")
    if headers:
        (modules / "build").mkdir()


def test_each_kernel_that_the_host_may_boot_is_looked_at(cli: Cli, root: Path) -> None:
    kernel(root, "6.12.1-amd64", built=True)
    kernel(root, "6.12.2-amd64", built=True)
    (root / "lib/modules/6.12.0-amd64").mkdir()  # left behind by a removed kernel
    status, findings = examine(cli, root)
    assert (status, findings["kernels"]) == (0, ("ok", "the module is built for 6.12.1-amd64, 6.12.2-amd64", ""))
    kernel(root, "6.12.3-amd64", built=False, headers=False)
    kernel(root, "6.12.4-amd64", built=False)
    kernel(root, "6.12.5-cloud-amd64", built=False, config="# CONFIG_VFIO_MDEV is not set\n")
    status, findings = examine(cli, root)
    assert status == 8
    assert "kernels" not in findings
    assert "linux-headers-6.12.3-amd64" in findings["kernel 6.12.3-amd64"][2]
    assert "dkms install" in findings["kernel 6.12.4-amd64"][2]
    assert "no mediated devices" in findings["kernel 6.12.5-cloud-amd64"][1]


def test_a_listed_gpu_that_the_module_does_not_have_is_named_with_its_code(cli: Cli, root: Path) -> None:
    drivers = root / "sys/bus/pci/drivers"
    (root / f"sys/bus/pci/devices/{GPU}/driver").symlink_to(drivers / "vgpumgr")
    held = root / "sys/bus/pci/devices/0000:3b:00.0"
    held.mkdir()
    (held / "driver").symlink_to(drivers / "nvidia")
    write(root / "etc/vgpumgr/gpus", f"{GPU}\n")
    assert examine(cli, root)[0] == 0
    write(root / "etc/vgpumgr/gpus", f"{GPU}\n0000:3b:00.0\n0000:99:00.0\n")
    status, findings = examine(cli, root)
    assert status == 1
    assert findings["gpu 0000:3b:00.0"] == (
        "fail",
        "the driver nvidia has it (gpu.held)",
        f"stop the programs that use it and unbind it, or remove it from {root}/etc/vgpumgr/gpus",
    )
    assert findings["gpu 0000:99:00.0"][1] == "this host has no such PCI function (gpu.absent)"
    assert f"gpu {GPU}" not in findings


def test_an_adopted_gpu_is_told_from_others_and_why_another_is_none(cli: Cli, root: Path) -> None:
    drivers = root / "sys/bus/pci/drivers"
    (root / f"sys/bus/pci/devices/{GPU}/driver").symlink_to(drivers / "nvidia")
    write(root / "etc/vgpumgr/agent.toml", f'[gpus."{GPU}"]\nengine = "lease"\ndriver = "nvidia"\n')
    write(root / f"sys/bus/pci/devices/{GPU}/vgpu/engine", "lease\n")
    _, findings = examine(cli, root)
    assert findings["gpus"][1] == f"{GPU} (adopted, driver nvidia)"
    assert f"gpu {GPU}" not in findings
    write(root / "etc/vgpumgr/agent.toml", '[gpus."0000:3b:00.0"]\nengine = "lease"\ndriver = "nvidia"\n')
    other = root / "sys/bus/pci/devices/0000:3b:00.0"
    other.mkdir()
    assert examine(cli, root)[1]["gpu 0000:3b:00.0"] == (
        "fail",
        f"no driver has it, but {root}/etc/vgpumgr/agent.toml says that nvidia does (gpu.driverless)",
        "`modprobe nvidia`; if the driver does not bind it, see dmesg",
    )
    (other / "driver").symlink_to(drivers / "nvidia")
    status, findings = examine(cli, root)
    assert status == 1
    assert findings["gpu 0000:3b:00.0"][1] == "vgpumgr.ko has not adopted it (gpu.unadopted)"


@pytest.mark.parametrize(
    ("version", "grade"),
    [
        ("#1 SMP PREEMPT_RT Debian", "ok"),
        ("#1 SMP PREEMPT Debian", "ok"),
        ("#1 SMP PREEMPT_DYNAMIC Debian", "warn"),
        ("#1 SMP Debian", "warn"),
    ],
)
def test_without_debugfs_the_kernels_version_tells(cli: Cli, root: Path, version: str, grade: str) -> None:
    (root / "sys/kernel/debug/sched/preempt").unlink()
    write(root / "proc/sys/kernel/version", version + "\n")
    assert examine(cli, root)[1]["preemption"][0] == grade


def test_a_real_time_kernel_preempts(cli: Cli, root: Path) -> None:
    (root / "sys/kernel/debug/sched/preempt").unlink()
    write(root / "sys/kernel/realtime", "1\n")
    assert examine(cli, root)[1]["preemption"][:2] == ("ok", "real-time kernel")


def test_a_socket_without_a_listener_is_a_failure(cli: Cli, root: Path) -> None:
    path = root / "run/vgpumgr/hook.sock"
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    status, findings = examine(cli, root)
    assert status == 1
    assert "Connection refused" in findings["agent"][1]


def test_libvirt_that_does_not_answer_is_a_failure(cli: Cli, root: Path) -> None:
    cli.session["virsh"] = lambda: "failed to connect to the hypervisor"
    status, findings = examine(cli, root)
    assert status == 1
    assert findings["libvirt"][:2] == ("fail", "failed to connect to the hypervisor")


def as_user(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)


@pytest.mark.parametrize("uid", [0, 1000])
def test_only_others_than_root_are_told_to_run_it_as_root(
    cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    as_user(monkeypatch, uid)
    for socket_name in ("hook.sock", "helper.sock"):
        (root / "run/vgpumgr" / socket_name).unlink()
    shutil.rmtree(root / "sys/kernel/debug")
    write(root / "proc/sys/kernel/version", "#1 SMP PREEMPT_DYNAMIC Debian\n")
    cli.session["virsh"] = lambda: "failed to connect to the hypervisor"
    findings = examine(cli, root)[1]
    also = "" if uid == 0 else ", and run this as root"
    assert {check: todo for check, (_, _, todo) in findings.items() if todo} == {
        "preemption": f"`mount -t debugfs debugfs /sys/kernel/debug`{also}",
        "agent": f"`systemctl status vgpumgr-agent`{also}",
        "helper": f"`systemctl status vgpumgr-helper`{also}",
        "libvirt": f"start libvirt's daemon{also}",
    }
    assert findings["preemption"][1] == "unknown: /sys/kernel/debug/sched/preempt: no such file or directory"


@pytest.mark.parametrize(
    ("uid", "todo"),
    [(0, "see the kernel's log for what AppArmor, SELinux or lockdown forbids"), (1000, "run this as root")],
)
def test_a_refused_permission_is_told_from_what_is_missing(
    cli: Cli, closed: Path, monkeypatch: pytest.MonkeyPatch, uid: int, todo: str
) -> None:
    as_user(monkeypatch, uid)
    findings = examine(cli, closed)[1]
    assert {check: found[2] for check, found in findings.items() if found[2]} == dict.fromkeys(
        (f"abi {GPU}", f"attach {GPU}", "preemption", "agent", "helper", "hook"), todo
    )
    assert all("permission denied" in found[1].lower() for found in findings.values() if found[2])


def test_a_virsh_that_is_not_there_is_no_matter_of_privilege(cli: Cli, root: Path) -> None:
    cli.session["virsh"] = lambda: checks.NO_VIRSH
    assert examine(cli, root)[1]["libvirt"] == (
        "fail",
        "virsh is not installed",
        "install libvirt-clients",
    )


def test_virsh_is_really_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checks.virsh_refusal() == "virsh is not installed"
    write(tmp_path / "virsh", "#!/bin/sh\necho 'error: no\nconnection' >&2\nexit 1\n", 0o755)
    assert checks.virsh_refusal() == "error: no connection"
    write(tmp_path / "virsh", '#!/bin/sh\n[ "$*" = "-q -c qemu:///system version" ]\n', 0o755)
    assert checks.virsh_refusal() is None


@pytest.mark.parametrize(
    ("update", "grade", "words"),
    [
        ({"last_report_at": None}, "fail", "never received a report of gpu-a"),
        ({"last_report_at": MADE - timedelta(hours=1)}, "fail", "the last one was 3640 s ago"),
        ({"last_report_at": MADE + timedelta(seconds=70)}, "warn", "clock is 30 s ahead"),
        ({"epoch_confirmed": False}, "warn", "restored"),
        ({"fenced_at": MADE}, "fail", "fenced"),
    ],
)
def test_the_last_report_is_looked_at(cli: Cli, root: Path, update: dict[str, object], grade: str, words: str) -> None:
    cli.api.lists["hosts"][0] = cli.api.lists["hosts"][0].model_copy(update=update)
    found = examine(cli, root)[1]["report"]
    assert found[0] == grade
    assert words in found[1]


def test_without_settings_or_with_a_refusal_the_report_is_not_known(cli: Cli, root: Path) -> None:
    cli.api.refuse(Code.OBJECT_UNKNOWN, "there is no host gpu-a")
    status, findings = examine(cli, root)
    assert (status, findings["report"][0]) == (1, "fail")
    cli.env = {}
    status, findings = examine(cli, root)
    assert (status, findings["report"][0]) == (8, "warn")
