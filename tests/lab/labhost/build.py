# SPDX-License-Identifier: Apache-2.0
"""What `lab build` makes, and the parts of a boot."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labhost import initrd, qemu
from labhost.artefacts import Artefacts, kernel_modules, tools
from labhost.cache import Cache
from labhost.checkpatch import checkpatch
from labhost.compute import Compute, compute
from labhost.debian import bare_image, host_root, qemu_root
from labhost.deploy import host_image
from labhost.paths import Paths
from labhost.selftests import vfio_selftests
from labhost.sparse import sparse
from labhost.toolchain import DEFAULT_KERNEL, KERNELS, Toolchain, toolchain

_REFRESHED = {"host": ("host-root", "qemu"), "selftests": ("selftests",), "checkpatch": ("checkpatch",)}


@dataclass(frozen=True, kw_only=True)
class Ingredients:
    """Everything a boot needs except its command; `host_root` instead of QEMU and an image for User-mode Linux."""

    toolchain: Toolchain
    initrds: tuple[Path, Path]
    qemu: Sequence[str] = ()
    host_image: Path | None = None
    compute_image: Path | None = None
    host_root: Path | None = None


def build(paths: Paths, what: str, *, kernels: Sequence[str] = (), refresh: bool = False) -> None:
    """Build `host`, `modules`, both (`all`), `compute`, `selftests`, or `checkpatch`, unless the cache has it.

    Without `kernels` the modules are built for all of Debian's kernels. `sparse` checks the modules under the default
    kernel or under `kernels`, if they have changed. `refresh` first drops cached Debian systems, to get newer packages.
    """
    names = kernels or [name for name, kernel in KERNELS.items() if not kernel.fragments]
    if refresh:
        cache = Cache(paths.cache)
        for name in _REFRESHED.get(what) or [f"toolchain-{kernel}" for kernel in names]:
            cache.forget(name)
        if what == "all":
            cache.forget("host-root")
            cache.forget("qemu")
    if what == "compute":
        compute(paths)
    if what == "selftests":
        vfio_selftests(paths)
    if what == "checkpatch":
        checkpatch(paths)
    if what == "sparse":
        for name in kernels or [DEFAULT_KERNEL]:
            sparse(paths, toolchain(paths, KERNELS[name]))
    if what in ("host", "all"):
        qemu_root(paths)
        host_image(paths)
    if what in ("modules", "all"):
        # first the parts that depend on Debian only, then those that an error in kmod/ can stop
        for name in names:
            toolchain(paths, KERNELS[name])
        for name in names:
            ingredients_of_kernel(paths, name)


def ingredients(
    paths: Paths,
    kernel: str,
    *,
    mode: str,
    guest_kernel: str = DEFAULT_KERNEL,
    artefacts: bool = True,
    computes: bool = False,
) -> Ingredients:
    """Return the parts of a lab host under a kernel; builds those that are missing or out of date."""
    computing = compute(paths) if computes else None
    chain, initrds = ingredients_of_kernel(
        paths, kernel, guest_kernel=guest_kernel, artefacts=artefacts, computing=computing
    )
    if chain.kernel.is_user_mode:
        return Ingredients(toolchain=chain, initrds=initrds, host_root=host_root(paths) if mode == "bare" else None)
    image = {"minimal": None, "bare": bare_image}.get(mode, host_image)
    return Ingredients(
        qemu=qemu.command(qemu_root(paths)),
        toolchain=chain,
        initrds=initrds,
        host_image=image(paths) if image else None,
        compute_image=computing.image if computing else None,
    )


def ingredients_of_kernel(
    paths: Paths,
    kernel: str,
    *,
    guest_kernel: str = DEFAULT_KERNEL,
    artefacts: bool = True,
    computing: Compute | None = None,
) -> tuple[Toolchain, tuple[Path, Path]]:
    """Return a kernel's toolchain and the two cached archives of its initial RAM disk."""
    chain = toolchain(paths, KERNELS[kernel])
    # User-mode Linux has no guests
    guest_chain = chain if chain.kernel.is_user_mode else toolchain(paths, KERNELS[guest_kernel])
    built = guests = Artefacts()
    if artefacts:
        programs = tools(paths, toolchain(paths, KERNELS[DEFAULT_KERNEL]))
        built = Artefacts(modules=kernel_modules(paths, chain), binaries=programs)
        guests = built if chain == guest_chain else Artefacts(modules=kernel_modules(paths, guest_chain))
    last = initrd.with_artefacts(paths, built, guest_chain, guests.of_guests, computing)
    return chain, (initrd.base(paths, chain, built), last)
