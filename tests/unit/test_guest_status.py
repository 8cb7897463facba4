# SPDX-License-Identifier: Apache-2.0
"""`vgpu-guest status` on the files of a fake root: what a guest has for compute, and why something does not work."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.test_workload import TOOL, build

FUNCTION = "sys/devices/pci0000:00/0000:00:06.0"
LIBRARY = "usr/lib/vgpumgr/libvgpu-opencl.so"
ICD = "etc/OpenCL/vendors/vgpumgr.icd"
NODE = f"{FUNCTION}/vgpu_guest/vgpu0-compute"
RELEASE = os.uname().release

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("make")), reason="needs gcc and make")


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(TOOL, tmp_path_factory.mktemp("tool"), "vgpu-guest")


def put(root: Path, name: str, text: str = "") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A guest in which everything works. Its second PCI function is not ours."""
    put(tmp_path, f"{FUNCTION}/vendor", "0x1234\n")
    put(tmp_path, f"{FUNCTION}/device", "0x5647\n")
    put(tmp_path, "sys/devices/pci0000:00/0000:00:02.0/vendor", "0x1234\n")
    put(tmp_path, "sys/devices/pci0000:00/0000:00:02.0/device", "0x1111\n")
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    for address in ("0000:00:02.0", "0000:00:06.0"):
        (devices / address).symlink_to(f"../../../devices/pci0000:00/{address}")
    bind(tmp_path, "vgpu_guest")
    put(tmp_path, "sys/module/vgpu_guest/version", "0.1.0\n")
    put(tmp_path, f"{NODE}/size", "4194304\n")
    put(tmp_path, f"{NODE}/states", " ".join(["open", "lost", "closing", *["free"] * 13]) + "\n")
    put(tmp_path, "dev/vgpu0-compute").chmod(0o666)
    put(tmp_path, LIBRARY)
    put(tmp_path, ICD, f"/{LIBRARY}\n")
    put(tmp_path, "usr/lib/x86_64-linux-gnu/libOpenCL.so.1")
    return tmp_path


def bind(root: Path, driver: str) -> None:
    link = root / FUNCTION / "driver"
    link.unlink(missing_ok=True)
    link.symlink_to(f"../../../bus/pci/drivers/{driver}")


def status(tool: Path, root: Path, **environment: str) -> tuple[int, dict[str, tuple[bool, str]]]:
    """Return the exit status and, for each part, whether it is good and the message."""
    done = subprocess.run(
        [tool, "--json", "--root", root, "status"], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.stderr == ""
    records = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {record["part"]: (record["ok"], record["text"]) for record in records}


def test_a_guest_in_which_all_is_well(tool: Path, root: Path) -> None:
    assert status(tool, root) == (
        0,
        {
            "function": (True, "0000:00:06.0"),
            "driver": (True, "vgpu_guest 0.1.0"),
            "node": (True, "/dev/vgpu0-compute"),
            "windows": (True, "16 of 4096 KiB: 13 free, 1 open, 1 closing, 1 lost"),
            "library": (True, f"/{LIBRARY}"),
            "loader": (True, "libOpenCL.so.1"),
            "icd": (True, f"/{ICD}"),
        },
    )


def test_people_get_a_line_for_each_part(tool: Path, root: Path) -> None:
    (root / LIBRARY).unlink()
    done = subprocess.run([tool, "--root", root, "status"], capture_output=True, text=True, timeout=60, env={})
    assert done.returncode == 1
    assert done.stdout.splitlines()[3:5] == [
        "windows   ok  16 of 4096 KiB: 13 free, 1 open, 1 closing, 1 lost",
        f"library   no  /{LIBRARY}: No such file or directory",
    ]


def no_function(root: Path) -> None:
    (root / FUNCTION / "device").write_text("0x5648\n")


def no_driver(root: Path) -> None:
    (root / FUNCTION / "driver").unlink()
    shutil.rmtree(root / "sys/module/vgpu_guest")


def built_driver(root: Path) -> None:
    no_driver(root)
    put(root, f"lib/modules/{RELEASE}/updates/dkms/vgpu_guest.ko.xz")


def refusing_driver(root: Path) -> None:
    (root / FUNCTION / "driver").unlink()


def no_windows(root: Path) -> None:
    shutil.rmtree(root / FUNCTION / "vgpu_guest")


def used_windows(root: Path) -> None:
    (root / NODE / "states").write_text("open lost\n")


def private_node(root: Path) -> None:
    (root / "dev/vgpu0-compute").chmod(0o600)


@pytest.mark.parametrize(
    ("harm", "part", "said"),
    [
        (no_function, "function", "there is no PCI function 1234:5647: no slice is attached to this VM"),
        (
            no_driver,
            "driver",
            f"no vgpu_guest for kernel {RELEASE}: install its headers, then dkms autoinstall",
        ),
        (built_driver, "driver", "vgpu_guest is not loaded: modprobe vgpu_guest"),
        (refusing_driver, "driver", "vgpu_guest is loaded but not bound to the function; see dmesg"),
        (
            lambda root: bind(root, "vfio-pci"),
            "driver",
            "the function is bound to vfio-pci instead of vgpu_guest",
        ),
        (
            no_windows,
            "windows",
            "the device has none: the slice's engine on the host does not lend",
        ),
        (used_windows, "windows", "all 2 are in use"),
        (
            lambda root: (root / "dev/vgpu0-compute").unlink(),
            "node",
            "/dev/vgpu0-compute: No such file or directory",
        ),
        (
            private_node,
            "node",
            "/dev/vgpu0-compute is not accessible to all users: mode 0600 instead of 0666",
        ),
    ],
)
def test_why_the_device_cannot_be_used(
    tool: Path, root: Path, harm: Callable[[Path], object], part: str, said: str
) -> None:
    harm(root)
    code, parts = status(tool, root)
    assert (code, parts[part]) == (3, (False, said))
    assert [name for name, (good, _) in parts.items() if not good] == [part]


@pytest.mark.parametrize(
    ("harm", "part", "said"),
    [
        (lambda root: (root / LIBRARY).unlink(), "library", f"/{LIBRARY}: No such file or directory"),
        (lambda root: (root / ICD).unlink(), "icd", f"/{ICD}: No such file or directory"),
        (lambda root: put(root, ICD), "icd", f"/{ICD} names nothing instead of /{LIBRARY}"),
        (lambda root: put(root, ICD, "/lib/x.so\n"), "icd", f"/{ICD} names /lib/x.so instead of /{LIBRARY}"),
        (
            lambda root: (root / "usr/lib/x86_64-linux-gnu/libOpenCL.so.1").unlink(),
            "loader",
            "there is no libOpenCL.so.1: install ocl-icd-libopencl1",
        ),
    ],
)
def test_why_programs_do_not_find_the_device(
    tool: Path, root: Path, harm: Callable[[Path], object], part: str, said: str
) -> None:
    harm(root)
    code, parts = status(tool, root)
    assert (code, parts[part]) == (1, (False, said))
    assert [name for name, (good, _) in parts.items() if not good] == [part]


def test_an_environment_that_leads_loaders_elsewhere_is_named(tool: Path, root: Path) -> None:
    code, parts = status(tool, root, OCL_ICD_VENDORS="/elsewhere")
    assert code == 1
    assert parts["icd"] == (False, f"OCL_ICD_VENDORS is set, so loaders ignore /{ICD}")
