# SPDX-License-Identifier: Apache-2.0
"""Turns Debian's root file system into the lab host's image with our own ansible roles.

It uses layers (overlayfs), so that a change of our code costs seconds. `system` is the result of the roles' tag
`system` (packages, dependencies of the software). `deployed` is a complete run of the playbook on top of it, with the
code of that time. `host` updates that code with the tags `module` and `software`. The image contains all layers.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from labhost import kernel_image
from labhost.cache import SHORT_LIVED_S, Cache, digest
from labhost.command import build_step
from labhost.debian import host_root
from labhost.errors import LabError
from labhost.paths import Paths
from labhost.progress import step
from labhost.snapshot import Snapshot
from labhost.toolchain import DEFAULT_KERNEL, KERNELS, toolchain

_SYSTEM_SOURCES = ("ansible", "tests/lab/deploy")
_DEPLOYED_SOURCES = (*_SYSTEM_SOURCES, "agent/hook", "agent/systemd", "agent/udev", "api/systemd", "migrations")
_MODULE_SOURCES = ("kmod",)
SOURCES = (*_DEPLOYED_SOURCES, *_MODULE_SOURCES)
"""The files that the playbook reads."""

_WHEEL_SOURCES = (
    "LICENSE", "MANIFEST.in", "README.md", "agent", "api", "kmod/COPYING", "kmod/VERSION", "kmod/sched", "migrations",
    "pyproject.toml", "setup.py", "vgpumgr",
)  # fmt: skip
_LOCKS = tuple(f"ansible/roles/{role}/files/requirements.lock" for role in ("vgpumgr_host", "vgpumgr_api"))

# The Python of the lab host, not of this machine.
_PYTHON = ("--python-version=3.13", "--implementation=cp", "--abi=cp313", "--abi=abi3", "--abi=none")
_PLATFORMS = tuple(f"--platform=manylinux_2_{minor}_x86_64" for minor in (5, 12, 17, 24, 26, 27, 28, 31, 34, 39))
_WHEEL_COMMAND = "-m pip wheel --quiet --no-input --disable-pip-version-check --no-deps --no-build-isolation"
_LIMIT_S = 900.0
_IMAGE_LIMIT_S = 15 * 60.0
"""An image is large, and a running lab host has it open."""

# $1 lower directories, $2 this layer, then the command
_IN_LAYER = """set -eu
lower=$1 layer=$2
shift 2
root=$layer/root
mkdir -p "$layer/upper" "$layer/work" "$root"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$layer/upper,workdir=$layer/work" "$root"
"""
_PLAY = """
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
exec "$@"
"""
# sparse; the spare room is for files written at run time; $2 is the kernel of guests
_MAKE_IMAGE = """
install -D -m 644 "$2" "$root/usr/local/lib/lab/guest-kernel"
used_kib=$(du -sk "$root" | cut -f1)
inodes=$(du -s --inodes "$root" | cut -f1)
truncate -s "$((used_kib + used_kib / 8 + 2048 * 1024))K" "$1"
exec mkfs.ext4 -q -F -O ^has_journal -m 0 -E lazy_itable_init=0 -N "$((inodes + 16384))" -d "$root" "$1"
"""


class Layer:
    """A layer of the lab host's root file system while it is built, in its own directory."""

    def __init__(self, paths: Paths, directory: Path, *, lower: Sequence[Path]) -> None:
        self._paths = paths
        self._directory = directory
        self._lower = ":".join(str(place) for place in lower)

    @property
    def root(self) -> Path:
        """The path of the lab host's root directory for the commands of this layer; empty for other processes."""
        return self._directory / "root"

    def play(
        self,
        sources: Snapshot,
        *,
        wheel: Path | None,
        arguments: Sequence[str] = (),
        playbook: str = "site",
        script: str = _PLAY,
        words: Sequence[str] = (),
    ) -> str:
        """Run a playbook from a copy of the sources; return its output.

        `script`: a shell script that runs the playbook's command, which it gets as arguments after `words`.
        """
        tree = self._directory / "source"
        sources.write(tree)
        collection = self._directory / "collections" / "ansible_collections" / "vgpumgr" / "vgpumgr"
        collection.parent.mkdir(parents=True, exist_ok=True)
        collection.unlink(missing_ok=True)
        collection.symlink_to(tree / "ansible")
        variables = {
            "lab_root": self.root,
            "lab_kernel": toolchain(self._paths, KERNELS[DEFAULT_KERNEL]).release,
            "lab_wheel": wheel or "",
            "lab_wheelhouse": wheelhouse(self._paths),
        }
        extra = [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]
        environ = {
            "ANSIBLE_CONFIG": str(tree / "tests" / "lab" / "deploy" / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(self._directory / "collections"),
            "ANSIBLE_HOME": str(self._directory / "ansible"),
            "LC_ALL": "C.UTF-8",
        }
        log = self._paths.cache / "logs" / f"deploy-{os.getpid()}.log"
        command: list[str | Path] = [
            _tool(self._paths, "ansible-playbook"),
            f"vgpumgr.vgpumgr.{playbook}",
            *extra,
            *arguments,
        ]
        self.run(script, [*words, *command], log=log, environ=environ)
        said = log.read_text(encoding="utf-8", errors="replace")
        log.rename(log.with_name("deploy.log"))
        return said

    def write_image(self, image: Path, kernel: Path) -> None:
        """Make an image of this layer and those below, with a kernel for guests."""
        self.run(_MAKE_IMAGE, [image, kernel], log=self._paths.cache / "logs" / "host-mkfs.log")

    def run(
        self, script: str, words: Sequence[str | Path], *, log: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        """Run a shell script for which this layer is mounted."""
        command = ["unshare", "--mount", "sh", "-c", _IN_LAYER + script, "lab", self._lower, self._directory, *words]
        build_step(command, name="deployment of the lab host", log=log, timeout_s=_LIMIT_S, environ=environ)

    def remove(self) -> None:
        """Remove the temporary files of the build."""
        for name in ("source", "collections", "ansible", "work", "root"):
            shutil.rmtree(self._directory / name, ignore_errors=True)


def host_image(paths: Paths) -> Path:
    """Return the root file system of the lab host, deployed by our roles: an ext4 image with kernel 6.12's modules."""
    return host_layers(paths)[0].parent / "host.ext4"


def host_layers(paths: Paths) -> list[Path]:
    """Return the layers of the image, uppermost first."""
    base = host_root(paths)
    wheel = product_wheel(paths)
    sources = Snapshot.take(paths.checkout, SOURCES)
    kernel = kernel_image.bootable(paths, toolchain(paths, KERNELS[DEFAULT_KERNEL]))
    code = Snapshot.take(paths.checkout, _MODULE_SOURCES).key(wheel.parent.name)

    def build_system(directory: Path) -> None:
        with step("lab host: what our software needs, by our ansible roles"):
            layer = Layer(paths, directory, lower=[base])
            layer.play(sources, wheel=None, arguments=["--tags", "system"])
            layer.remove()

    def build_deployed(directory: Path) -> None:
        with step("lab host: all of it, by our ansible roles"):
            layer = Layer(paths, directory, lower=[system, base])
            layer.play(sources, wheel=wheel)
            layer.remove()
            (directory / "code").write_text(code, encoding="ascii")

    def build_host(directory: Path) -> None:
        with step("lab host: image"):
            layer = Layer(paths, directory, lower=[deployed, system, base])
            if (deployed.parent / "code").read_text(encoding="ascii") != code:
                layer.play(sources, wheel=wheel, arguments=["--tags", "module,software"])
            layer.write_image(directory / "host.ext4", kernel)
            layer.remove()

    cache = Cache(paths.cache)
    key = Snapshot.take(paths.checkout, _SYSTEM_SOURCES).key(base.parent.name, _IN_LAYER, _PLAY)
    system = cache.entry("host-system", key, build_system) / "upper"
    key = Snapshot.take(paths.checkout, _DEPLOYED_SOURCES).key(key)
    deployed = cache.entry("host-deployed", key, build_deployed) / "upper"
    key = digest([key, code, kernel.parent.name, _MAKE_IMAGE])
    return [cache.entry("host", key, build_host, unused_limit_s=_IMAGE_LIMIT_S) / "upper", deployed, system, base]


def product_wheel(paths: Paths) -> Path:
    """Return the wheel of the present checkout."""
    sources = Snapshot.take(paths.checkout, _WHEEL_SOURCES)
    log = paths.cache / "logs" / "wheel.log"

    def build(directory: Path) -> None:
        with step("our wheel"):
            tree = directory / "source"
            sources.write(tree)
            script = f'cd "$1" && exec "$2" {_WHEEL_COMMAND} --wheel-dir "$3" .'
            command: list[str | Path] = ["sh", "-c", script, "lab", tree, _tool(paths, "python"), directory]
            build_step(command, name="building our wheel", log=log, timeout_s=_LIMIT_S)
            shutil.rmtree(tree)

    entry = Cache(paths.cache).entry("wheel", sources.key(_WHEEL_COMMAND), build, unused_limit_s=SHORT_LIVED_S)
    return next(entry.glob("*.whl"))


def wheelhouse(paths: Paths) -> Path:
    """Return a directory with the wheels that the roles' lists of dependencies name, for the lab host's Python."""
    locks = Snapshot.take(paths.checkout, _LOCKS)
    log = paths.cache / "logs" / "wheelhouse.log"

    def build(directory: Path) -> None:
        with step("wheels of what our software depends on"):
            locks.write(directory / "locks")
            for name in locks.files:
                command: list[str | Path] = [
                    _tool(paths, "python"), "-m", "pip", "download", "--quiet", "--no-input",
                    "--disable-pip-version-check", "--only-binary=:all:", "--no-deps", "--require-hashes",
                    *_PYTHON, *_PLATFORMS, "--dest", directory / "wheels", "--requirement", directory / "locks" / name,
                ]  # fmt: skip
                build_step(command, name="pip download", log=log, timeout_s=_LIMIT_S)

    return Cache(paths.cache).entry("wheelhouse", locks.key(*_PYTHON, *_PLATFORMS), build) / "wheels"


def _tool(paths: Paths, name: str) -> Path:
    place = paths.checkout / "build" / "venv" / "bin" / name
    if not place.exists():
        raise LabError(f"{place} is missing, with which the lab host is deployed: run `make setup`")
    return place
