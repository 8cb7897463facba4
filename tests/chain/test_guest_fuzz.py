# SPDX-License-Identifier: Apache-2.0
"""A guest gone mad, in a real VM: it harms itself, and afterwards its slice works again."""

import pytest

from tests.chain.guests import BOOT_S, records
from tests.rig.gpu import Gpu
from tests.rig.guest import Guests

DESCRIPTORS_S, CONFIG_S = 40, 20

# Single bytes of configuration space, function level resets included, while no driver is there to mind. Not those of
# BAR0: with it the guest could hide its own devices, which is no matter of the slice.
SCRIBBLE = f"""
driver=/sys/bus/pci/drivers/vgpu_guest
address=$(basename $(echo $driver/0000:*))
config=/sys/bus/pci/devices/$address/config
dd if=$config of=/tmp/config bs=256 count=1 2>/dev/null
echo $address >$driver/unbind
now() {{ cut -d. -f1 /proc/uptime; }}
end=$(($(now) + {CONFIG_S})) writes=0
while [ $(now) -lt $end ]; do
    at=$((RANDOM % 256))
    [ $at -ge 16 ] && [ $at -lt 20 ] && continue
    dd if=/dev/urandom of=$config bs=1 count=1 seek=$at conv=notrunc 2>/dev/null
    writes=$((writes + 1))
done
echo vgpu.writes=$writes
dd if=/tmp/config of=$config bs=256 count=1 2>/dev/null
echo $address >$driver/bind
"""
COMMAND = f"""
echo vgpu.mad=1
vgpu-guest fuzz --json --seconds {DESCRIPTORS_S} --seed 7
{SCRIBBLE}
echo vgpu.sane=1
vgpu-guest saturate --json --op mix --items 400 --queued-min 0
"""


@pytest.mark.long
def test_a_guest_gone_mad_for_a_minute_harms_only_itself(gpu: Gpu, guests: Guests) -> None:
    """Descriptors of any content, then configuration space; the neighbour has its share of the engine throughout."""
    for tenant in ("bad", "good"):
        gpu.tenant(tenant, weight=100, timeslice_us=1000)
    bad, good = gpu.slice("bad"), gpu.slice("good")
    with gpu.loaded({good: {"op": "delay", "delay_us": 400, "depth": 1024}}) as outcomes:
        guest = guests.start("guest-bad", slices=(bad,), command=COMMAND)
        guest.wait_for("^vgpu.mad=1", timeout_s=BOOT_S)
        window = gpu.window()
        guest.wait_for("^vgpu.sane=1", timeout_s=BOOT_S + 3 * (DESCRIPTORS_S + CONFIG_S))
        window.close()
        guest.wait_for(r"^vgpu.exit=0\s", timeout_s=BOOT_S)
    neighbour = outcomes[0].report("name", good)

    (fuzz,) = records(guest, "fuzz")
    assert fuzz["ok"], fuzz
    assert min(fuzz["completed"], fuzz["faults"], fuzz["resets"]) > 100
    assert int(guest.wait_for(r"^vgpu.writes=(\d+)", timeout_s=1)[1]) > 100
    assert window.last.slices[bad].errors - window.first.slices[bad].errors >= fuzz["faults"]
    assert (neighbour["error"], neighbour["mismatches"]) == (0, 0)
    assert window.share["good"] >= 0.48
    (work,) = records(guest, "saturate")
    assert work["verified"] >= 400
    assert (work["mismatches"], work["error"]) == (0, 0)
