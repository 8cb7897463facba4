# SPDX-License-Identifier: Apache-2.0
"""Numeric parameters of the module, set when it is loaded or later: a value that is out of range changes nothing."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from tests.rig.gpu import ADDRESS, Gpu, unload_module
from tests.rig.kernel import kernel_log
from vgpumgr.control.sysfs import write_file

PARAMETERS = Path("/sys/module/vgpumgr/parameters")
MIB = 1 << 20
HOUR_MS = 3_600_000


def complaints(option: str) -> int:
    """How often the kernel's log reports the refusal."""
    return kernel_log().count(f"vgpumgr: option {option} refused: ")


@pytest.mark.parametrize("option", ["dma_timeout_ms", "engine_timeout_ms"])
# The log accepts ten messages in five seconds.
@pytest.mark.parametrize(
    ("text", "says"),
    [("0", errno.ERANGE), (str(HOUR_MS + 1), errno.ERANGE), (str(1 << 32), errno.ERANGE), ("soon", errno.EINVAL)],
)
def test_a_number_out_of_range_changes_nothing(gpu: Gpu, option: str, text: str, says: int) -> None:
    path = PARAMETERS / option
    before, told = path.read_text(), complaints(option)
    with pytest.raises(OSError, match=os.strerror(says)):
        write_file(path, f"{text}\n")
    assert path.read_text() == before
    assert complaints(option) == told + 1


@pytest.mark.parametrize("option", ["dma_timeout_ms", "engine_timeout_ms"])
def test_the_least_and_the_greatest_number_are_taken(gpu: Gpu, option: str) -> None:
    path = PARAMETERS / option
    before = path.read_text()
    try:
        for number in (1, HOUR_MS):
            path.write_text(str(number))
            assert path.read_text() == f"{number}\n"
    finally:
        path.write_text(before)


def test_an_accelerator_has_memory_for_the_smallest_slice_at_least(gpu: Gpu) -> None:
    """Otherwise the module is not loaded."""
    gpu.clear()
    with gpu.unloaded():
        refused = subprocess.run(["lab-insmod", "memory_mib=15"], capture_output=True, text=True, check=False)
        assert refused.returncode
        assert os.strerror(errno.ERANGE) in refused.stderr
        assert complaints("memory_mib") == 1
        assert not PARAMETERS.exists()
        subprocess.run(["lab-insmod", "memory_mib=16"], check=True)
        gpu.sysfs.bind(ADDRESS)
        assert gpu.sysfs.read_gpu(ADDRESS, "memory_total") == str(16 * MIB)
        gpu.sysfs.unbind(ADDRESS)
        unload_module()


@pytest.mark.parametrize("entries", [0, 4, 1000, 8192])
def test_the_guest_driver_is_not_loaded_with_rings_that_cannot_be(entries: int) -> None:
    """The module says so itself: no device is asked."""
    before = kernel_log()
    command = ["insmod", "/lab/vgpu_guest.ko", f"ring_entries={entries}"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode
    said = f"vgpu_guest: ring_entries={entries} is not a power of two from 8 to 4096\n"
    assert said in kernel_log().removeprefix(before)
    assert not Path("/sys/module/vgpu_guest").exists()
