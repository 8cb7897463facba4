# SPDX-License-Identifier: Apache-2.0
"""A hostile guest in a real VM: it harms only itself, and afterwards its slice works again."""

import pytest

from tests.chain.guests import BOOT_S, records
from tests.rig.gpu import Gpu
from tests.rig.guest import Guests

DESCRIPTORS_S, CONFIG_S, REGISTERS_S = 30, 15, 15

# Write single bytes of configuration space, including function level resets, while no driver is bound. The bytes of
# BAR0 are left out: with them the guest could hide its own devices, which has nothing to do with the slice.
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
"""

# Values that the guest may write in BAR0. Most of them are written between a reset and an item, where the device takes
# them. Addresses are high ones, where the guest has no memory, or lie in the first megabyte, which it does not use: DMA
# elsewhere would end the guest early.
POKE = f"""
dd if=/tmp/config of=$config bs=256 count=1 2>/dev/null
printf '\\006' | dd of=$config bs=1 seek=4 conv=notrunc 2>/dev/null
bar0=$(head -n 1 /sys/bus/pci/devices/$address/resource | cut -d ' ' -f 1)
pokes=0
poke() {{ devmem $((bar0 + $1)) 32 $(($2)); pokes=$((pokes + 1)); }}
any() {{
    set -- 16 20 24 32 36 40 44 48 52 56 104 108 4096 4104 4108
    shift $((RANDOM % $#))
    case $((RANDOM % 4)) in
    0) poke $1 "RANDOM % 4" ;;
    1) poke $1 "1 << RANDOM % 16" ;;
    2) poke $1 "RANDOM * 64 & 0xfffff" ;;
    *) poke $1 "1 << 31 | RANDOM << 16 | RANDOM" ;;
    esac
}}
end=$(($(now) + {REGISTERS_S}))
while [ $(now) -lt $end ]; do
    poke 16 2
    poke 56 "8 << RANDOM % 10"
    any; any
    poke 16 1
    any
    poke 4096 "RANDOM % 16"
done
echo vgpu.pokes=$pokes
dd if=/tmp/config of=$config bs=256 count=1 2>/dev/null
echo $address >$driver/bind
"""
COMMAND = f"""
echo vgpu.mad=1
vgpu-exercise fuzz --json --seconds {DESCRIPTORS_S} --seed 7
{SCRIBBLE}{POKE}
echo vgpu.sane=1
vgpu-exercise saturate --json --op mix --items 400 --queued-min 0
"""


@pytest.mark.long
def test_a_guest_gone_mad_for_a_minute_harms_only_itself(gpu: Gpu, guests: Guests) -> None:
    """Random descriptors, configuration space and registers; the neighbour has its share throughout."""
    for tenant in ("bad", "good"):
        gpu.tenant(tenant, weight=100, timeslice_us=1000)
    bad, good = gpu.slice("bad"), gpu.slice("good")
    with gpu.loaded({good: {"op": "delay", "delay_us": 400, "depth": 1024}}) as outcomes:
        guest = guests.start("guest-bad", slices=(bad,), command=COMMAND)
        guest.wait_for("^vgpu.mad=1", timeout_s=BOOT_S)
        window = gpu.window()
        writes = guest.wait_for(r"^vgpu.writes=(\d+)", timeout_s=BOOT_S + 3 * (DESCRIPTORS_S + CONFIG_S))
        unpoked = gpu.slice_stats(bad)
        pokes = guest.wait_for(r"^vgpu.pokes=(\d+)", timeout_s=BOOT_S + 3 * REGISTERS_S)
        poked = gpu.slice_stats(bad)
        guest.wait_for("^vgpu.sane=1", timeout_s=BOOT_S)
        window.close()
        guest.wait_for(r"^vgpu.exit=0\s", timeout_s=BOOT_S)
    neighbour = outcomes[0].report("name", good)

    (fuzz,) = records(guest, "fuzz")
    assert fuzz["ok"], fuzz
    assert min(fuzz["completed"], fuzz["faults"], fuzz["resets"]) > 100
    assert min(int(writes[1]), int(pokes[1])) > 100
    assert min(poked.errors - unpoked.errors, poked.doorbells - unpoked.doorbells) > 5
    assert window.last.slices[bad].errors - window.first.slices[bad].errors >= fuzz["faults"]
    assert (neighbour["error"], neighbour["mismatches"]) == (0, 0)
    assert window.share["good"] >= 0.48
    (work,) = records(guest, "saturate")
    assert work["verified"] >= 400
    assert (work["mismatches"], work["error"]) == (0, 0)
