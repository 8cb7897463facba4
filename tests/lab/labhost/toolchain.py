# SPDX-License-Identifier: Apache-2.0
"""The kernels of the lab, each with a root file system that builds modules for it."""

from dataclasses import dataclass
from pathlib import Path

from labhost import own_kernel
from labhost.cache import Cache, digest
from labhost.paths import Paths
from labhost.progress import step
from labhost.rootfs import MKFS, ext4, mmdebstrap

# The kernel's files are unpacked, not installed: an installation would build an unused initial RAM disk.
# They match the headers because they come from the same run against the same mirror.
_DOWNLOAD_KERNEL = """set -eu
root=$1
release=$(basename "$root"/usr/src/linux-headers-*-amd64)
release=${release#linux-headers-}
download=$(mktemp -d)
trap 'rm -rf "$download"' EXIT
cd "$download"
APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get download -o APT::Sandbox::User=root """
_WHOLE_KERNEL = """"linux-image-$release"
dpkg-deb -x ./*.deb unpacked
"""
_SPLIT_KERNEL = """"linux-base-$release" "linux-binary-$release" "linux-modules-$release"
for package in ./*.deb; do dpkg-deb -x "$package" unpacked; done
mkdir unpacked/boot
mv "unpacked/usr/lib/modules/$release/vmlinuz" "unpacked/boot/vmlinuz-$release"
cp "unpacked/usr/lib/modules/$release/config" "unpacked/boot/config-$release"
"""
_PLACE_KERNEL = """mkdir -p "$root/usr/lib/modules/$release"
cp -a unpacked/boot/. "$root/boot/"
for modules in unpacked/lib/modules unpacked/usr/lib/modules; do
    [ ! -d "$modules" ] || cp -a "$modules/$release/." "$root/usr/lib/modules/$release/"
done
chroot "$root" depmod "$release"
printf '%s' "$release" > "$root/kernel-release"
"""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel of a Debian suite, with the compiler that its headers require; `split` if it comes in several packages.

    With `fragments`, which are configurations in tests/lab/kernels, it is built here from the sources of `series`: for
    a
    virtual machine, or as User-mode Linux if its `architecture` is `um`. The series `7.x` is the newest one.
    """

    name: str
    suite: str
    compiler: str
    split: bool = False
    series: str = ""
    fragments: tuple[str, ...] = ()
    architecture: str = "x86_64"
    multiprocessor: bool = True

    @property
    def is_user_mode(self) -> bool:
        """Whether the kernel runs as a program of this machine."""
        return self.architecture == "um"


def _user_mode(name: str, *fragments: str, suite: str = "trixie", series: str = "6.12") -> Kernel:
    return Kernel(
        name=name,
        suite=suite,
        compiler="gcc-14",
        series=series,
        fragments=fragments,
        architecture="um",
        multiprocessor="uml-smp.config" in fragments,
    )


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel(name="6.12", suite="trixie", compiler="gcc-14"),
        Kernel(name="6.1", suite="bookworm", compiler="gcc-12"),
        # the newest one
        Kernel(name="7.x", suite="trixie-backports", compiler="gcc-14", split=True),
        Kernel(name="debug", suite="trixie", compiler="gcc-14", series="6.12", fragments=("debug.config",)),
        _user_mode("uml", "uml.config", "uml-virtual-time.config"),
        _user_mode("uml-debug", "uml.config", "uml-virtual-time.config", "uml-debug.config"),
        _user_mode("uml-smp", "uml.config", "uml-smp.config", suite="trixie-backports", series=own_kernel.NEWEST),
    )
}
DEFAULT_KERNEL = "6.12"


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """A root file system with a compiler for one kernel, and that kernel's own files."""

    kernel: Kernel
    directory: Path

    @property
    def root(self) -> Path:
        """The directory for chroot."""
        return self.directory / "root"

    @property
    def release(self) -> str:
        """The output of `uname -r` under this kernel."""
        return (self.root / "kernel-release").read_text(encoding="ascii")

    @property
    def modules(self) -> Path:
        """The kernel's modules, compressed as Debian ships them."""
        return self.root / "usr" / "lib" / "modules" / self.release

    @property
    def vmlinuz(self) -> Path:
        """The bootable kernel."""
        return self.root / "boot" / f"vmlinuz-{self.release}"

    @property
    def modules_image(self) -> Path:
        """A file system to mount on /usr/lib/modules."""
        return self.directory / "modules.ext4"

    @property
    def headers(self) -> str:
        """The value of KDIR inside the root."""
        return f"/usr/src/linux-headers-{self.release}"


def toolchain(paths: Paths, kernel: Kernel) -> Toolchain:
    """Return the toolchain for a kernel, built if it is not cached."""
    make = _own if kernel.fragments else _debian
    return Toolchain(kernel=kernel, directory=make(paths, kernel, f"toolchain-{kernel.name}"))


def _debian(paths: Paths, kernel: Kernel, name: str) -> Path:
    packages = [
        "busybox-static", "gcc", kernel.compiler, "kmod", "libc6-dev", "linux-headers-amd64", "make", "perl", "sparse",
    ]  # fmt: skip
    unpack = _DOWNLOAD_KERNEL + (_SPLIT_KERNEL if kernel.split else _WHOLE_KERNEL) + _PLACE_KERNEL

    def build(directory: Path) -> None:
        with step(f"{kernel.suite} toolchain with kernel {kernel.name}"):
            root = directory / "root"
            mmdebstrap(paths, name, root, kernel.suite, packages, hook=unpack)
            _make_modules_image(paths, name, directory)

    key = digest([*packages, kernel.suite, unpack, *MKFS])
    return Cache(paths.cache).entry(name, key, build)


def _own(paths: Paths, kernel: Kernel, name: str) -> Path:
    fragment = "".join((paths.kernel_configs / part).read_text(encoding="ascii") for part in kernel.fragments)
    names = ("lab_pci.c", f"linux-{kernel.series}.patch") if kernel.is_user_mode else ()
    additions = [paths.kernel_configs / "uml" / addition for addition in names]
    packages = ["busybox-static", "gcc", kernel.compiler, "kmod", "libc6-dev", "make", "perl", "sparse"]
    packages += [*own_kernel.PACKAGES, own_kernel.source_package(kernel.series)]

    def build(directory: Path) -> None:
        with step(f"kernel {kernel.name}, {kernel.series} with {', '.join(kernel.fragments)}"):
            root = directory / "root"
            mmdebstrap(paths, name, root, kernel.suite, packages)
            own_kernel.build_kernel(
                paths,
                name,
                root,
                architecture=kernel.architecture,
                fragment=fragment,
                additions=additions,
                scratch=directory / "scratch",
            )
            if not kernel.is_user_mode:
                _make_modules_image(paths, name, directory)

    recipe = [own_kernel.CONFIGURE, own_kernel.BUILD]
    key = digest([*packages, kernel.suite, fragment, *(part.read_bytes() for part in additions), *recipe, *MKFS])
    return Cache(paths.cache).entry(name, key, build)


def _make_modules_image(paths: Paths, name: str, directory: Path) -> None:
    ext4(paths, name, directory / "root" / "usr" / "lib" / "modules", directory / "modules.ext4", spare_mib=32)
