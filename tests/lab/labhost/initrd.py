# SPDX-License-Identifier: Apache-2.0
"""Initial RAM disks. Each boot gets three archives in a row:

    base        per kernel: busybox, modules to reach the disks (or all that the minimal lane has), our scripts
    artefacts   what was built from kmod/, below /lab, and the guests' initial RAM disk, and their kernel if it is not
                the usual one; for lab hosts that compute, also what was built from compute/
    job         the command of this boot, below /lab/job

so that a change in kmod/ never rebuilds the image of the lab host.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from labhost import kernel_image
from labhost.artefacts import Artefacts
from labhost.cache import SHORT_LIVED_S, Cache, digest
from labhost.compute import Compute
from labhost.cpio import Archive
from labhost.modules import Module, ModuleTree, needed_by
from labhost.paths import Paths
from labhost.toolchain import DEFAULT_KERNEL, Toolchain

_BOOT_MODULES = ("virtio_pci", "virtio_console", "virtio_blk", "ext4", "9p", "9pnet_virtio")
_OPTIONAL_MODULES = (
    "crc32c_generic", "crc32c_intel", "libcrc32c",  # ext4 requests crc32c by its alias
    "overlay",  # lab hosts that compute
)  # fmt: skip
_MINIMAL_MODULES = ("vfio", "vfio_iommu_type1", "mdev", "irqbypass", "virtio_net")


def base(paths: Paths, toolchain: Toolchain, artefacts: Artefacts) -> Path:
    """Return the first archive, which can boot by itself. The artefacts only say which modules ours depend on."""
    tree = ModuleTree(toolchain.modules)
    extra = sorted({name for module in artefacts.modules for name in needed_by(module) if tree.has(name)})
    wanted = [*_BOOT_MODULES, *_MINIMAL_MODULES, *extra]
    if toolchain.kernel.is_user_mode:
        wanted = [name for name in (*_MINIMAL_MODULES, *extra) if tree.has(name)]
    wanted += [name for name in _OPTIONAL_MODULES if tree.has(name)]
    scripts = sorted(path for path in paths.inside_scripts.iterdir() if path.is_file())

    def build(directory: Path) -> None:
        with (directory / "base.cpio").open("wb") as stream:
            _write_base(stream, toolchain, tree.closure(wanted), scripts)

    key = digest([toolchain.directory.name, *wanted, *_contents(scripts), _own_source()])
    return Cache(paths.cache).entry("initrd-base", key, build, unused_limit_s=SHORT_LIVED_S) / "base.cpio"


def with_artefacts(
    paths: Paths,
    artefacts: Artefacts,
    guest: Toolchain,
    guest_modules: Sequence[Path],
    compute: Compute | None = None,
) -> Path:
    """Return the second archive, for lab hosts of the artefacts' kernel; `guest_modules` are for the guests' kernel."""
    guest_init = paths.inside_scripts / "guest-init"
    binaries = sorted(artefacts.binaries)
    sources = [*artefacts.modules, *binaries, *guest_modules, guest_init]

    def build(directory: Path) -> None:
        initrd = directory / "guest-initrd"
        with initrd.open("wb") as stream:
            _write_guest(stream, guest, guest_init, guest_modules, binaries)
            if compute:
                archive = Archive(stream)
                archive.add_tree("", compute.guest)
                archive.close()
        with (directory / "artefacts.cpio").open("wb") as stream:
            archive = Archive(stream)
            archive.add_directory("lab/bin")
            for module in artefacts.modules:
                archive.add_file(f"lab/{module.name}", module)
            for binary in binaries:
                archive.add_file(f"lab/bin/{binary.name}", binary)
            if compute:
                archive.add_tree("lab/compute", compute.host)
            if not guest.kernel.is_user_mode:
                archive.add_file("lab/guest/initrd", initrd)
                if guest.kernel.name != DEFAULT_KERNEL:  # the lab host's image has that kernel
                    archive.add_file("lab/guest/kernel", kernel_image.bootable(paths, guest))
            archive.close()

    made_of = [guest.directory.name, compute.guest.parent.name if compute else "", *_contents(sources)]
    key = digest([*made_of, _own_source()])
    return Cache(paths.cache).entry("initrd-artefacts", key, build, unused_limit_s=SHORT_LIVED_S) / "artefacts.cpio"


def write_job(stream: BinaryIO, command: str, files: Mapping[str, bytes]) -> None:
    """Write the third archive: `command` is a shell script, `files` lie beside it."""
    archive = Archive(stream)
    archive.add_data("lab/job/command", command.encode(), mode=0o755)
    for name, data in files.items():
        archive.add_data(f"lab/job/{name}", data, mode=0o600)
    archive.close()


def _write_base(stream: BinaryIO, toolchain: Toolchain, modules: Sequence[Module], scripts: Iterable[Path]) -> None:
    archive = Archive(stream)
    _add_busybox(archive, toolchain)
    _add_modules(archive, toolchain, modules)
    for script in scripts:
        # `lab-...` are commands for people, the others are steps of the boot
        place = "lab/sbin" if script.name.startswith("lab-") else "lab/init"
        archive.add_file(f"{place}/{script.name}", script)
    archive.add_symlink("init", "lab/init/stage1")
    archive.close()


def _write_guest(
    stream: BinaryIO, guest: Toolchain, init: Path, modules: Sequence[Path], binaries: Iterable[Path]
) -> None:
    archive = Archive(stream)
    _add_busybox(archive, guest)
    if modules:
        tree = ModuleTree(guest.modules)
        needed = sorted({name for module in modules for name in needed_by(module) if tree.has(name)})
        _add_modules(archive, guest, tree.closure(needed))
    for module in modules:
        archive.add_file(module.name, module)
    for binary in binaries:
        if binary.name in ("vgpu-guest", "vgpu-exercise"):
            archive.add_file(f"bin/{binary.name}", binary)
    archive.add_file("init", init)
    archive.close()


def _add_busybox(archive: Archive, toolchain: Toolchain) -> None:
    archive.add_file("bin/busybox", toolchain.root / "usr" / "bin" / "busybox")
    archive.add_symlink("bin/sh", "busybox")
    for directory in (
        "proc",
        "sys",
        "dev",
        "run",
        "tmp",
        "root",
        "etc",
        "new",
        "checkout",
        "sbin",
        "usr/bin",
        "usr/sbin",
    ):
        archive.add_directory(directory)


def _add_modules(archive: Archive, toolchain: Toolchain, modules: Sequence[Module]) -> None:
    """Add modules with a modules.dep that lists only modules in the archive."""
    directory = f"lib/modules/{toolchain.release}"
    tree = ModuleTree(toolchain.modules)
    paths = {module.name: module.path for module in modules}
    lines = []
    for module in modules:
        archive.add_data(f"{directory}/{module.path}", module.data)
        needs = [paths[need.name] for need in reversed(tree.closure([module.name])) if need.name != module.name]
        lines.append(f"{module.path}: {' '.join(needs)}".rstrip() + "\n")
    archive.add_data(f"{directory}/modules.dep", "".join(lines).encode())


def _contents(files: Iterable[Path]) -> Iterable[bytes | str]:
    for file in files:
        yield file.name
        yield file.read_bytes()


def _own_source() -> bytes:
    """A change in this file makes new archives."""
    return Path(__file__).read_bytes()
