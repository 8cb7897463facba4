# SPDX-License-Identifier: Apache-2.0
"""The driver of an accelerator's vendor, vgpu_vendor.ko (tests/kmod/vendor), and a GPU that is adopted from it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.rig.gpu import ADDRESS, Gpu, unload_module
from tests.rig.kernel import PATIENCE
from vgpumgr.control.sysfs import Sysfs, write_file
from vgpumgr.errors import UnknownGpuError

DRIVER = "vgpu_vendor"
_MODULE = Path("/lab/vgpu_vendor.ko")
_PARAMETERS = Path("/sys/module") / DRIVER / "parameters"


def load() -> None:
    """Load it if it is not loaded."""
    if not _PARAMETERS.exists():
        subprocess.run(["insmod", _MODULE], check=True, timeout=60 * PATIENCE)


def unload() -> None:
    """Unload it if it is loaded; it then releases its functions."""
    if _PARAMETERS.exists():
        unload_module(DRIVER)


def set_option(name: str, value: bool) -> None:
    """`slow`: it releases a function only once this is False. `shares`: its functions have mdev types of their own."""
    write_file(_PARAMETERS / name, "Y\n" if value else "N\n")


def is_letting_go() -> bool:
    """Whether its `remove` is running."""
    return (_PARAMETERS / "waiting").read_text().strip() == "Y"


@contextmanager
def has_function(sysfs: Sysfs, address: str = ADDRESS, *, ours: bool = True) -> Iterator[None]:
    """Bind it to the function while the body runs; `ours`: our driver has the function before and afterwards."""
    load()
    try:
        sysfs.bind(address, DRIVER)
        yield
    finally:
        set_option("slow", False)
        sysfs.unbind(address)
        unload()
        if ours:
            sysfs.bind(address)


@contextmanager
def adopted(gpu: Gpu) -> Iterator[Gpu]:
    """The GPU's function, bound to the vendor's driver throughout; slices and tenants made by the body are removed at
    the end."""
    gpu.control.adopt_gpu(gpu.address)
    other = Gpu(gpu.control, gpu.sysfs, gpu.address)
    try:
        yield other
    finally:
        with suppress(UnknownGpuError):  # its driver has released it
            other.clear()
            gpu.control.release_gpu(gpu.address)
