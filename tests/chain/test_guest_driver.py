# SPDX-License-Identifier: Apache-2.0
"""The guest driver in a real VM whose kernel checks memory and locks: each of the driver's allocations fails in turn.

Only runs where guests have such a kernel: `lab run --guest-kernel debug`.
"""

import os
import re

import pytest
from labhost.splats import complaints

from tests.chain.guests import BOOT_S
from tests.rig.defects import COMPLAINTS, each_defect
from tests.rig.gpu import Gpu
from tests.rig.guest import Guest, Guests

pytestmark = pytest.mark.skipif(
    os.environ.get("LAB_GUEST_KERNEL") != "debug", reason="the guests' kernel does not check itself"
)

MEMORY_MIB = 768
SLOWNESS = 20
# The errno of the system call, as printed by the shell or our program. The last three come from kernel functions that
# the driver calls. For example, a region of a device is busy when the kernel cannot allocate its record.
WITHOUT_MEMORY = re.compile(
    "Cannot allocate memory|Out of memory|Bad address|resource busy|No such device|No space left"
)

# `each NAME COMMAND` runs the command once for each allocation of the driver, with that allocation failing, and reports
# the command's output. It skips the allocations for an interrupt's files in /proc: the kernel warns about itself when
# it removes a file that it could not create.
PRELUDE = r"""
driver=/sys/bus/pci/drivers/vgpu_guest
address=$(basename $driver/0000:*)
set -- $(grep -i ' t .*\[vgpu_guest\]' /proc/kallsyms | cut -d' ' -f1 | sort)
first=$1
for last; do :; done
set -- $(grep -A1 ' register_irq_proc$' /proc/kallsyms | cut -d' ' -f1)
for kind in failslab fail_page_alloc fail_usercopy; do
    cd /sys/kernel/debug/$kind
    echo 0x$first >require-start
    echo 0x${last%???}fff >require-end
    echo 0x$1 >reject-start
    echo 0x$2 >reject-end
    echo 32 >stacktrace-depth
    echo 1 >verbose
    for name in ignore-gfp-wait ignore-gfp-highmem; do
        [ ! -e $name ] || echo N >$name
    done
    [ ! -e min-order ] || echo 0 >min-order
done
cd /
echo 0 >/tmp/tried
after() { :; }
each() {
    name=$1 number=0 left=0
    shift
    while [ $left = 0 ]; do
        number=$((number + 1))
        # A parent that waits for nobody, so that what has ended can be looked at.
        (
            (echo $number >/proc/self/fail-nth && exec "$@") >/tmp/said 2>&1 &
            echo $! >/tmp/tried
            exec sleep 600
        ) &
        until grep -qs '^State:.Z' /proc/$(cat /tmp/tried)/status; do sleep 0.1; done
        tried=/proc/$(cat /tmp/tried)
        left=$(cat $tried/fail-nth)
        echo "vgpu.tried=$name $number $left $(cut -d' ' -f52 $tried/stat) $(tail -n1 /tmp/said)"
        kill $!
        echo 0 >/tmp/tried
        after
    done
}
"""
# Another user has enabled the function already. Otherwise the driver asks ACPI for the interrupt, and ACPI uses memory
# that it has freed after an allocation failed.
BINDING = r"""
after() {
    [ ! -e $driver/$address ] || echo $address >$driver/unbind
    for trace in /dev/vgpu0 $driver/$address; do
        [ ! -e $trace ] || echo "vgpu.left=$trace"
    done
    grep -H vgpu /proc/interrupts /proc/iomem | sed 's/^/vgpu.left=/'
}
after
echo 1 >/sys/bus/pci/devices/$address/enable
each bind sh -c "echo $address >$driver/bind"
after() { :; }
echo $address >$driver/bind
[ -e /dev/vgpu0 ] || echo "vgpu.left=another number"
"""
END = r"""
sleep 6 # what is younger kmemleak takes for in use
for _ in 1 2; do # it tells of what two scans find
    echo scan >/sys/kernel/debug/kmemleak
done
cat /sys/kernel/debug/kmemleak
echo "vgpu.log=$(dmesg | wc -l)"
dmesg
"""
TRIED = re.compile(r"^vgpu\.tried=(\w+) (\d+) (\d+) (\d+) (.*?)\r?$", re.MULTILINE)


def each_use(of: str) -> str:
    return f"""
each use {of}
{of} || echo "vgpu.left=a device that does not work"
"""


def start(gpu: Gpu, guests: Guests, command: str) -> Guest:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    slices = (gpu.slice("blue"),)
    return guests.start("guest-blue", slices=slices, command=PRELUDE + command + END, memory_mib=MEMORY_MIB)


def told(guest: Guest) -> str:
    """The whole output, once the guest has ended."""
    guest.wait_for(r"^vgpu.exit=0\s", timeout_s=SLOWNESS * BOOT_S)
    return guest.console().replace("\r", "")


def faults(console: str) -> list[str]:
    """The complaints of the guest's kernel, the memory that it lost, and other leftovers."""
    return complaints(console) + re.findall("vgpu.left.*|unreferenced object.*", console)


def check(guest: Guest, *, least: int) -> None:
    """Every failure is reported as lack of memory, leaves nothing behind, and ends nothing else."""
    console = told(guest)
    tried = TRIED.findall(console)
    *met, (_, _, left, status, said) = tried
    assert (left != "0", status) == (True, "0"), said
    assert len(met) >= least
    assert all(int(status) & 0x7F == 0 for _, _, _, status, _ in met), "killed by a signal"
    refused = [line for line in met if line[3] != "0"]
    assert len(refused) >= least
    assert all(WITHOUT_MEMORY.search(line[4]) for line in refused), refused
    assert faults(console) == []


def test_what_is_planted_is_found(gpu: Gpu, guests: Guests) -> None:
    """Without this, the silence of the other tests would prove nothing."""
    found = faults(told(start(gpu, guests, each_defect("/vgpu_defects.ko"))))
    missed = [what for what, complaint in COMPLAINTS.items() if not any(complaint in fault for fault in found)]
    assert missed == [], found
    assert any(fault.startswith("unreferenced object") for fault in found), found


def test_binding(gpu: Gpu, guests: Guests) -> None:
    check(start(gpu, guests, BINDING), least=8)


def test_binding_to_a_device_with_windows(gpu: Gpu, guests: Guests) -> None:
    with gpu.leasing():
        guest = start(gpu, guests, BINDING)
        try:
            check(guest, least=10)
        finally:
            guest.destroy()


def test_work(gpu: Gpu, guests: Guests) -> None:
    check(start(gpu, guests, each_use("vgpu-guest submit copy 65536")), least=3)


def test_windows(gpu: Gpu, guests: Guests) -> None:
    with gpu.leasing():
        guest = start(gpu, guests, each_use("vgpu-exercise windows memory"))
        try:
            check(guest, least=2)
        finally:
            guest.destroy()
