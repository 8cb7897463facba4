# SPDX-License-Identifier: Apache-2.0
"""The guest's packages for compute: the Debian package's contents, and `make install-guest`."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KMOD = ROOT / "kmod"
VERSION = (KMOD / "VERSION").read_text().strip()
SOURCES = Path(f"usr/src/vgpumgr-guest-{VERSION}")
LIBRARY = Path("usr/lib/vgpumgr/libvgpu-opencl.so")
LOADER_FILE = Path("etc/OpenCL/vendors/vgpumgr.icd")

pytestmark = pytest.mark.skipif(
    not all(shutil.which(program) for program in ("gcc", "make", "dpkg-deb")), reason="needs gcc, make and dpkg-deb"
)


def make(target: str, *settings: str) -> None:
    subprocess.run(
        ["make", "-s", "-j2", "-C", KMOD / "guest" / "package", target, *settings],
        check=True,
        timeout=600,
        stdout=subprocess.DEVNULL,
    )


def files(directory: Path) -> set[Path]:
    return {path.relative_to(directory) for path in directory.rglob("*") if not path.is_dir()}


def modes(package: Path) -> dict[str, tuple[str, str]]:
    """Return mode and owner of every path in the package."""
    listed = subprocess.run(["dpkg-deb", "-c", package], check=True, capture_output=True, text=True).stdout
    words = [line.split() for line in listed.splitlines()]
    return {line[5]: (line[0], line[1]) for line in words}


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("build")


@pytest.fixture(scope="module")
def package(build: Path) -> Path:
    make("deb", f"BUILD={build}", f"DIST={build}/dist")
    (made,) = (build / "dist").iterdir()
    return made


@pytest.fixture(scope="module")
def unpacked(package: Path, build: Path) -> Path:
    subprocess.run(["dpkg-deb", "-R", package, build / "unpacked"], check=True)
    return build / "unpacked"


def test_the_package_has_what_computing_needs_and_nothing_else(unpacked: Path) -> None:
    there = files(unpacked)
    kernel = {path for path in there if path.is_relative_to(SOURCES)}
    expected = {
        LIBRARY,
        LOADER_FILE,
        Path("usr/bin/vgpu-guest"),
        Path("usr/lib/udev/rules.d/60-vgpu-guest.rules"),
        Path("usr/share/doc/vgpu-guest/copyright"),
    }
    assert {path for path in there - kernel if path.parts[0] != "DEBIAN"} == expected
    assert {path.name for path in (unpacked / "DEBIAN").iterdir()} == {"control", "conffiles", "postinst", "prerm"}


def test_dkms_gets_all_sources_of_the_guests_driver_alone(unpacked: Path) -> None:
    sources = unpacked / SOURCES
    assert {path.name for path in sources.iterdir()} == {"dkms.conf", "Makefile", "VERSION", "COPYING", "guest", "uapi"}
    objects = re.findall(r"\b(\w+)\.o\b", re.sub("CFLAGS.*|obj-m.*", "", (sources / "guest/Kbuild").read_text()))
    assert objects
    assert {path.stem for path in (sources / "guest").glob("*.c")} == set(objects)
    included = {
        name
        for path in (sources / "guest").iterdir()
        for name in re.findall(r'^#include "(\w+\.h)"', path.read_text(), re.M)
    }
    assert included <= {path.name for path in [*(sources / "guest").iterdir(), *(sources / "uapi").iterdir()]}
    name, version = re.findall(r'^PACKAGE_(?:NAME|VERSION)="(.*)"$', (sources / "dkms.conf").read_text(), re.M)
    assert SOURCES.name == f"{name}-{version}"


def test_the_loader_file_names_the_library_which_is_one(unpacked: Path) -> None:
    assert (unpacked / LOADER_FILE).read_text() == f"/{LIBRARY}\n"
    assert (unpacked / "DEBIAN/conffiles").read_text() == f"/{LOADER_FILE}\n"
    assert ctypes.CDLL(str(unpacked / LIBRARY)).clIcdGetPlatformIDsKHR


def test_files_are_roots_and_only_programs_can_be_executed(package: Path) -> None:
    found = modes(package)
    assert {owner for _, owner in found.values()} == {"root/root"}
    programs = {name for name, (mode, _) in found.items() if mode.startswith("-") and "x" in mode}
    assert programs == {"./usr/bin/vgpu-guest"}
    assert {mode for mode, _ in found.values()} == {"drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x"}


def test_the_control_file_names_the_version_and_what_is_needed(package: Path, unpacked: Path) -> None:
    fields = dict(re.findall(r"^([A-Z][\w-]*): (.*)$", (unpacked / "DEBIAN/control").read_text(), re.M))
    assert (fields["Package"], fields["Version"]) == ("vgpu-guest", VERSION)
    assert package.name == f"vgpu-guest_{VERSION}_{fields['Architecture']}.deb"
    assert re.fullmatch(r"dkms, libc6 \(>= 2\.\d+(\.\d+)*\)", fields["Depends"])


@pytest.mark.parametrize("name", ["postinst", "prerm"])
def test_scripts_are_for_this_version_and_have_no_mistake_of_syntax(unpacked: Path, name: str) -> None:
    script = unpacked / "DEBIAN" / name
    assert f"vgpumgr-guest {VERSION}" in script.read_text().replace("-m ", "").replace("-v ", "")
    assert "@" not in script.read_text()
    subprocess.run(["sh", "-n", script], check=True)


def test_other_systems_get_the_same_files_by_make_install(unpacked: Path, build: Path, tmp_path: Path) -> None:
    make("install", f"BUILD={build}", f"DESTDIR={tmp_path}")
    of_package = {path for path in files(unpacked) if path.parts[0] != "DEBIAN" and path.name != "copyright"}
    assert files(tmp_path) == of_package
    assert all((tmp_path / path).read_bytes() == (unpacked / path).read_bytes() for path in of_package)
