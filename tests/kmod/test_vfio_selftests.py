# SPDX-License-Identifier: Apache-2.0
"""The kernel's own VFIO selftests on our device; needs a kernel with IOMMUFD, like the debug kernel.

`lab build --what selftests` builds them. The tests are unmodified. Two files in `selftests/` extend their library: one
drives our registers, so that a device can copy and interrupt, the other handles a name that is a UUID. Everything
passes except the tests in RULES, which do not apply to a mediated device, or to ours.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rig.gpu import Gpu
from tests.rig.kernel import PATIENCE, lacking

USER_MODE = os.environ.get("LAB_KERNEL", "").startswith("uml")
HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
PROGRAMS = Path(__file__).resolve().parents[2] / "build" / "selftests"
ADDRESS = "0000:00:00.0"  # the name by which the selftests know the slice
IDS = {"vendor": "0x1234", "device": "0x5647"}  # kmod/uapi/vgpu_device.h
RESULT = re.compile(r"^(ok|not ok) \d+ (\S+)(?: # (SKIP)\b.*)?$", re.M)
SKIPPED_ALL = 4  # KSFT_SKIP

# The tests that are not "ok", and why. The first rule that matches a test has its result.
RULES = (
    # type1 reports the addresses that a device can reach only if an IOMMU translates for it; a mediated device has none
    (r".*(dma_mapping(_mmio)?_test|dma_map_limit_test|driver_test)\.vfio_type1(v2)?_iommu.*", "not ok"),
    # BAR0 is registers: it is trapped, not mapped
    (r"vfio_dma_mapping_mmio_test\..*", "SKIP"),
    # MSI-X only
    (r"vfio_pci_irq_test\.msi\..*", "SKIP"),
    # the lab host has no room for pages of a gigabyte
    (r"vfio_dma_mapping_test\..*hugetlb_1gb.*", "SKIP"),
    # User-mode Linux has no huge pages at all
    *([(r"vfio_dma_mapping_test\..*hugetlb_2mb.*", "SKIP")] if USER_MODE else []),
)

# The least number of tests of a program that must be "ok".
LEAST = {
    "vfio_iommufd_setup_test": 6,
    "vfio_pci_device_test": 4,
    "vfio_pci_driver_test": 21,
    "vfio_dma_mapping_test": 9,
    "vfio_dma_mapping_mmio_test": 0,
    "vfio_pci_device_init_perf_test": 5,
}
DIVIDES = "vfio_pci_sriov_uapi_test"


@dataclass(frozen=True)
class Device:
    """A slice, and the directory that the selftests see instead of the host's PCI functions."""

    uuid: str
    functions: Path


@pytest.fixture
def huge_pages() -> Iterator[None]:
    """A few huge pages for one of the selftests to map, where the kernel has any."""
    if USER_MODE:
        yield
        return
    HUGE_PAGES.write_text("4")
    yield
    HUGE_PAGES.write_text("0")


@pytest.fixture
def device(gpu: Gpu, tmp_path: Path, request: pytest.FixtureRequest) -> Device:
    if not Path("/dev/iommu").exists():
        lacking("IOMMUFD")
    if not PROGRAMS.exists():
        lacking(f"{PROGRAMS}: `tests/lab/lab build --what selftests` makes it")
    request.getfixturevalue("huge_pages")
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    found = Path(f"/sys/bus/mdev/devices/{uuid}").resolve()
    alias = tmp_path / ADDRESS
    alias.mkdir()
    for name in ("iommu_group", "vfio-dev"):
        (alias / name).symlink_to((found / name).resolve(strict=True))
    for name, value in IDS.items():
        (alias / name).write_text(f"{value}\n")
    return Device(uuid, tmp_path)


def run(program: str, device: Device) -> subprocess.CompletedProcess[str]:
    """Run it in its own mount namespace, in which the slice is the only PCI function."""
    script = 'mount --bind "$1" /sys/bus/pci/devices; exec "$2" "$3"'
    command = ["unshare", "--mount", "sh", "-ec", script, "sh", device.functions, PROGRAMS / program, ADDRESS]
    return subprocess.run(
        [str(word) for word in command],
        env={**os.environ, "VFIO_SELFTESTS_UUID": device.uuid},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120 * PATIENCE,
        check=False,
    )


def expected(name: str) -> str:
    return next((how for rule, how in RULES if re.fullmatch(rule, name)), "ok")


@pytest.mark.parametrize(("program", "least"), LEAST.items())
def test_it_passes(gpu: Gpu, device: Device, program: str, least: int) -> None:
    done = run(program, device)
    results = {name: skipped or word for word, name, skipped in RESULT.findall(done.stdout)}
    print(done.stdout)
    assert results == {name: expected(name) for name in results}, done.stdout
    assert sum(how == "ok" for how in results.values()) >= least, done.stdout
    assert gpu.slice_stats(device.uuid).queued == 0


def test_virtual_functions_of_ours_are_none_to_divide(device: Device) -> None:
    assert run(DIVIDES, device).returncode == SKIPPED_ALL


def test_none_is_left_out(device: Device) -> None:
    assert {path.name for path in PROGRAMS.iterdir()} == {*LEAST, DIVIDES}
