# SPDX-License-Identifier: Apache-2.0
"""The OpenCL packages and programs of a lab host and its guests, for runs with --compute.

Debian's packages are a layer on the lab host's root file system. Its /usr becomes a disk that overlayfs puts over the
lab host's own /usr at boot, so that the image of other lab hosts does not change. Our programs are compiled in that
layer.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from labhost.cache import SHORT_LIVED_S, Cache, digest
from labhost.debian import host_root
from labhost.deploy import Layer
from labhost.paths import Paths
from labhost.progress import step
from labhost.rootfs import MKFS, ext4
from labhost.snapshot import Snapshot

_PACKAGES = ("libc6-dev", "ocl-icd-libopencl1", "ocl-icd-opencl-dev", "opencl-c-headers", "pocl-opencl-icd")
_SOURCES = ("compute", "kmod/sched", "kmod/uapi", "vgpumgr/gpu/native", "tests/chain/programs")

_INSTALL = """
mount -t proc proc "$root/proc"
for place in tmp var/cache/apt var/lib/apt/lists; do
    mount -t tmpfs tmpfs "$root/$place"
done
export DEBIAN_FRONTEND=noninteractive
chroot "$root" apt-get -q update
chroot "$root" apt-get -q -y --no-install-recommends install "$@"
"""

# $1: the sources
_BUILD = """
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root/src"
mount --bind "$1" "$root/src"
exec chroot "$root" /usr/bin/env -u TMPDIR PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 sh -c '
set -eu
jobs=-j$(nproc)
make $jobs -C /src/compute OUT=/src/build PYTHON=python3
make $jobs -C /src/tests/chain/programs OUT=/src/programs
mkdir -p /src/host /src/guest/usr/lib/vgpumgr /src/guest/etc/OpenCL/vendors /src/guest/bin
for program in /src/build/vgpu-* /src/build/libvgpu-opencl.so; do
    strip --strip-debug -o "/src/host/${program##*/}" "$program"
done
cp /src/programs/* /src/host/
cp /src/programs/* /src/guest/bin/
cp /src/host/libvgpu-opencl.so /src/guest/usr/lib/vgpumgr/
echo /usr/lib/vgpumgr/libvgpu-opencl.so >/src/guest/etc/OpenCL/vendors/vgpumgr.icd
cd /
ldd /src/guest/bin/* /src/guest/usr/lib/vgpumgr/* | grep -o "/[^ ]*[.]so[^ ]*" | grep -v ^/src/ | sort -u |
    xargs cp -L --parents -t /src/guest
'
"""


@dataclass(frozen=True, kw_only=True)
class Compute:
    """`image`: a disk with the layer over the lab host's /usr, and with /etc/OpenCL. `host`: directory of our
    programs. `guest`: directory that is copied to the root directory of guests.
    """

    image: Path
    host: Path
    guest: Path


def compute(paths: Paths) -> Compute:
    """Return all of it; builds the parts that are not cached."""
    layer = _layer(paths)
    programs = _programs(paths, layer)
    return Compute(image=layer.parent / "compute.ext4", host=programs / "host", guest=programs / "guest")


def _layer(paths: Paths) -> Path:
    """The layer with Debian's packages; their disk is beside it."""
    base = host_root(paths)

    def build(directory: Path) -> None:
        with step("lab host: PoCL, as a disk of its own"):
            layer = Layer(paths, directory, lower=[base])
            layer.run(_INSTALL, _PACKAGES, log=paths.cache / "logs" / "compute-packages.log")
            layer.remove()
            ext4(paths, "compute", directory / "upper", directory / "compute.ext4", spare_mib=0)

    key = digest([base.parent.name, *_PACKAGES, _INSTALL, *MKFS])
    return Cache(paths.cache).entry("host-compute", key, build) / "upper"


def _programs(paths: Paths, layer: Path) -> Path:
    """Our programs for lab hosts and guests."""
    base = host_root(paths)
    sources = Snapshot.take(paths.checkout, _SOURCES)

    def build(directory: Path) -> None:
        with step("programs that compute"):
            place = directory / "build"
            tree = place / "source"
            sources.write(tree)
            Layer(paths, place, lower=[layer, base]).run(
                _BUILD, [tree], log=paths.cache / "logs" / f"compute-{os.getpid()}.log"
            )
            for name in ("host", "guest"):
                (tree / name).rename(directory / name)
            shutil.rmtree(place)

    key = sources.key(layer.parent.name, _BUILD)
    return Cache(paths.cache).entry("compute", key, build, unused_limit_s=SHORT_LIVED_S)
