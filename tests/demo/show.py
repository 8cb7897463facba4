# SPDX-License-Identifier: Apache-2.0
"""The demo itself; runs in a lab host as root.

The product as our ansible role deployed it, used as an operator uses it: tenants, quotas and claims through the CLI,
two real guests through libvirt, whose hook attaches their slices. In each an OpenCL program draws; the accelerator is
PoCL, which the kernel module lends to them in turns. Every figure and every check ends in build/demo/summary.json; the
exit status is 1 if a check failed.
"""

import argparse
import base64
import gzip
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import libvirt

from tests.demo import timeline
from tests.demo.summary import PATH, Summary
from tests.rig.api import Api
from tests.rig.drawing import COMPUTE, Frames, draw, frames, wrong, zoom
from tests.rig.guest import Guest, Guests, libvirt_guests
from tests.rig.product import BIN, Product, deployed, eventually, new_vm_uuid
from vgpumgr.broker.places import pocl_library
from vgpumgr.cli.domain import NAMESPACE
from vgpumgr.control.netlink import Control

SHARES = {"blue": 750, "green": 250}
TIMESLICES_US = {"blue": 5000, "green": 5000}
LIVE_TABLES = 3
LOOK_S = 2
LIVE_S = 12  # the time that the tables take
AGENT_SETTINGS = Path("/etc/vgpumgr/agent.toml")
COUNTERS_S = 1  # the agent looks every 3 s and reports each time
POINTS = 1.0  # the allowed distance of a share from its entitlement, in points of the lease time
BOOT_S = 600  # for both guests, until they have checked every operation
MDEVS = Path("/sys/bus/mdev/devices")
GPU = "0000:00:10.0"
MEMORY = "64M"  # a process of the guest uses 16 MiB of it
GUEST_MEMORY_MIB = 128
# Enough queued work to keep a busy guest from running out of it.
DRAWING = ("--iterations", "1000", "--rows", "8", "--ahead", "8")
PICTURE_FRAMES = {"blue": 24, "green": 48}
# First the picture, then endless frames, so that time must be shared.
GUEST_COMMAND = """
mandelbrot {options} --frames {frames} --output /tmp/picture >/tmp/drawn || echo vgpu.failed=$?
echo "vgpu.picture=$(gzip -c /tmp/picture | base64 -w 0)"
mandelbrot {options}
"""


@dataclass
class Demo:
    """One run of the demo. The CLI does everything that is shown; `api` reads the rest, because a command takes
    seconds.
    """

    summary: Summary
    product: Product
    guests: Guests
    api: Api
    right: Future[Frames]

    def shown(self, *arguments: str) -> str:
        """Run the CLI like an operator, and show both command and output."""
        print(f"$ vgpumgr {shlex.join(arguments)}", flush=True)
        output = self.product.text(*arguments)
        print(output, end="", flush=True)
        return output

    # ---- the story

    def tenant_with_a_vm(self, tenant: str, *, keep: bool) -> Guest:
        """Make a tenant, a profile, a claim and a domain with the slice, and start the domain; return while it
        boots.
        """
        share = SHARES[tenant]
        self.summary.step(
            f"{tenant}: tenant, quota, claim and VM; `vgpumgr attach` adds the slice,"
            " `virsh start` makes libvirt ask our hook"
        )
        vm_uuid = new_vm_uuid()
        self.shown("create", "tenant", tenant, "-o", "name")
        self.shown(
            "set", "quota", tenant, "--share-permille", str(share), "--memory", MEMORY, "--slices", "1",
            "--timeslice-us", str(TIMESLICES_US[tenant]),
        )  # fmt: skip
        self.shown("create", "profile", f"p{share}", "--share-permille", str(share), "--memory", MEMORY, "-o", "name")
        self.shown("create", "slice", "--tenant", tenant, "--profile", f"p{share}", "--vm", vm_uuid)
        name = f"guest-{tenant}"
        command = GUEST_COMMAND.format(options=" ".join(DRAWING), frames=PICTURE_FRAMES[tenant])
        guest = self.guests.define(name, vm_uuid=vm_uuid, command=command, memory_mib=GUEST_MEMORY_MIB, keep=keep)
        self.shown("attach", self.slice_of(tenant), "--domain", name)
        print(f"$ virsh start {name}", flush=True)
        guest.start()
        return guest

    def quotas_hold(self) -> None:
        self.summary.step("while both guests boot: what quotas do")
        used = {tenant: self.used(tenant)[0] for tenant in SHARES}
        self.summary.check("claims are charged to the tenants' quotas", used == SHARES, used=used)
        over = self.refused("create", "slice", "--tenant", "blue", "--profile", "p250")
        self.summary.check("a claim beyond the quota is refused", "quota.exceeded" in over, error=over)

    def used(self, tenant: str) -> tuple[int, int, int]:
        """Return a tenant's use of its quota: permille, bytes, slices."""
        quota = self.api.call("GET", f"/v1/quotas/{tenant}")
        return quota["used_share_permille"], quota["used_mem_bytes"], quota["used_slices"]

    def used_of_gpu(self) -> int:
        """Return how many permille of the accelerator are claimed."""
        (gpu,) = self.api.items(f"/v1/gpus?host={self.product.host}")
        return int(gpu["used_share_permille"])

    def refused(self, *arguments: str) -> str:
        """Return the CLI's refusal; "" if it does not refuse."""
        done = subprocess.run([BIN / "vgpumgr", *arguments], capture_output=True, text=True, timeout=60, check=False)
        return done.stderr.strip().splitlines()[0] if done.returncode else ""

    def both_draw(self, started: dict[str, Guest]) -> None:
        """Wait until both guests have sent their picture and draw without end."""
        pictures = self.summary.figures["pictures"] = {}
        for tenant, guest in started.items():
            sent = guest.wait_for(r"^vgpu\.picture=(\S*)\s", timeout_s=BOOT_S).group(1)
            picture = gzip.decompress(base64.b64decode(sent))
            count = PICTURE_FRAMES[tenant]
            file = PATH.with_name(f"{tenant}.ppm")
            file.write_bytes(picture)
            pictures[tenant] = {"file": file.name, "frame": count - 1}
            self.summary.check(
                f"guest of {tenant}: drew a picture on its slice, bit for bit as PoCL draws it without us",
                picture == drawn_directly(count),
                frame=count - 1,
            )
            guest.wait_for(r'"record": "frame"', timeout_s=BOOT_S)

    def slice_of(self, tenant: str) -> str:
        (claim,) = self.api.items(f"/v1/slices?tenant={tenant}")
        return str(claim["id"])

    def watch(self, phase: str, entitled: dict[str, float]) -> None:
        """Show the live table for a while, and compare the shares obtained in that time with the entitlements."""
        self.settle()
        command = ("top", "--interval", str(LOOK_S), "--count", str(LIVE_TABLES))
        print(f"$ vgpumgr {shlex.join(command)}", flush=True)
        with subprocess.Popen([BIN / "vgpumgr", *command]) as tables:
            rows = self.product.shares(interval_s=LIVE_S)
        if tables.returncode:
            raise RuntimeError(f"vgpumgr {shlex.join(command)}: exit status {tables.returncode}")
        self.summary.figures[phase] = rows
        # Emulated processors cannot keep an engine busy, so shares are relative to the time that was used.
        busy = sum(rows[tenant]["obtained_share"] for tenant in entitled)
        for tenant, share in entitled.items():
            row = rows[tenant]
            obtained = row["obtained_share"] / busy if busy else 0.0
            self.summary.check(
                f"{phase}: {tenant} gets the share it is entitled to",
                abs(row["entitled_share"] - share) < 0.001 and 100 * abs(obtained - share) <= POINTS,
                entitled=f"{100 * row['entitled_share']:.1f}%",
                obtained=f"{100 * obtained:.1f}% of the lease time"
                f" ({100 * row['obtained_share']:.1f}% of these {row['window_ns'] / 1e9:.0f} s)",
                timeslice=f"{row['timeslice_us']} us",
            )

    def frames_of(self, started: dict[str, Guest], samples: list[timeline.Sample], before: dict[str, int]) -> None:
        """Report how much was computed in the lent time, and that all of it is right."""
        leased_ns = timeline.gained(samples[0], samples[-1])
        for tenant, guest in started.items():
            found = frames(guest.console())
            bad = wrong(found, self.right.result())
            self.summary.check(
                f"guest of {tenant}: every frame is as PoCL draws it",
                bool(found) and not bad,
                frames=len(found),
                wrong=sorted(bad),
                in_a_leased_second=f"{(len(found) - before[tenant]) * 1e9 / leased_ns[tenant]:.1f}",
            )

    def settle(self) -> None:
        """Wait for the second report from now on, because the first may describe an earlier state."""
        slice_id = self.slice_of("blue")
        reported = set()

        def again() -> bool:
            reported.add(self.api.call("GET", f"/v1/slices/{slice_id}")["observed"]["reported_at"])
            return len(reported) > 2

        eventually(again, what="the host reports twice")

    def change_quota(self, started: dict[str, Guest]) -> None:
        self.summary.step("blue's quota is cut from 750 to 250 permille while both work: the shares follow")
        pids = {tenant: guest.qemu_pid() for tenant, guest in started.items()}
        slice_id = self.slice_of("blue")
        self.shown("set", "quota", "blue", "--share-permille", "250")
        self.summary.figures["changes_s"] = [self.summary.elapsed_s()]

        def followed() -> bool:
            return bool(self.api.call("GET", f"/v1/slices/{slice_id}")["enforcement"]["applied_permille"] == 250)

        eventually(followed, what="the host enforces the new share")
        self.watch("after the cut", {"blue": 0.5, "green": 0.5})
        same = pids == {tenant: guest.qemu_pid() for tenant, guest in started.items()}
        self.summary.check("no VM was restarted for it", same)

    def without_a_claim(self) -> None:
        self.summary.step("and a VM with the slice of another: libvirt refuses to start it, with our reason")
        stolen = self.slice_of("blue")
        metadata = f"<v:slices xmlns:v='{NAMESPACE}'><v:slice id='{stolen}'/></v:slices>"
        thief = self.guests.define(
            "guest-thief", vm_uuid=new_vm_uuid(), command="true", slices=(stolen,), metadata=metadata
        )
        print("$ virsh start guest-thief", flush=True)
        try:
            thief.start()
            error = ""
        except libvirt.libvirtError as refusal:
            error = str(refusal).strip()
        print(f"error: {error}", flush=True)
        self.summary.check("a VM without a claim does not start", "claim" in error.rpartition("exit status")[2])

    def kill_and_start_again(self, guest: Guest) -> None:
        """Kill the VM and start it again; return while it boots."""
        self.summary.step("SIGKILL for green's QEMU, then the same VM again, on the same UUID")
        slice_id = self.slice_of("green")
        before, _ = reserved_memory()
        os.kill(guest.qemu_pid(), signal.SIGKILL)
        eventually(lambda: slice_id not in reserved_memory()[1], what="the killed VM's device goes")
        after, _ = reserved_memory()
        gone = not (MDEVS / slice_id).exists()
        self.summary.check("its device and memory are free", gone and after < before, before=before, after=after)
        self.summary.check("its claim is still there", self.slice_of("green") == slice_id)
        eventually(lambda: not guest.running(), what="libvirt notices")
        guest.start()

    def works_again(self, guest: Guest) -> None:
        self.summary.step("green's VM has booted again")
        slice_id = self.slice_of("green")
        guest.wait_for(r'"record": "frame"', timeout_s=BOOT_S)
        self.summary.check("the VM works again on the same slice", (MDEVS / slice_id).exists(), slice=slice_id)

    def give_back(self, guest: Guest) -> None:
        self.summary.step("meanwhile blue's VM is stopped and its claim deleted: capacity and quota return")
        before, (share, _, _) = self.used_of_gpu(), self.used("blue")
        slice_id = self.slice_of("blue")
        guest.destroy()
        self.shown("detach", slice_id, "--domain", guest.name)
        self.shown("delete", "slice", slice_id, "--wait", "60")
        after = self.used_of_gpu()
        used = self.used("blue")
        self.summary.check("the GPU's capacity is back", before - after == share > 0, before=before, after=after)
        self.summary.check("the tenant's quota is back", used == (0, 0, 0), used=used)


def reserved_memory() -> tuple[int, set[str]]:
    """Return the device memory in use, in bytes, and the slices that the kernel knows."""
    with Control() as control:
        (gpu,) = control.gpus()
        return gpu.memory_reserved_bytes, {device.uuid for device in control.slices()}


def drawn_directly(count: int) -> bytes:
    """Return the last of `count` frames, drawn by PoCL in this lab host."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "picture"
        draw(*DRAWING, "--frames", str(count), "--output", str(file))
        return file.read_bytes()


def set_up_agent() -> None:
    """Write the role's settings for a host whose GPU is an OpenCL library, and those for a live table."""
    text, changed = re.subn(
        r"^counters_interval_s = .*$", f"counters_interval_s = {COUNTERS_S}", AGENT_SETTINGS.read_text(), flags=re.M
    )
    if changed != 1:
        raise RuntimeError(f"{AGENT_SETTINGS} does not say how often counters are told")
    tables = f"""
[executor]
library = "{pocl_library()}"
directory = "{COMPUTE}"

[gpus."{GPU}"]
engine = "lease"
"""
    AGENT_SETTINGS.write_text(text + tables)
    print(f"{AGENT_SETTINGS}: counters_interval_s = {COUNTERS_S} instead of 60, for live tables; and", flush=True)
    print(tables, flush=True)


def run(summary: Summary, *, keep: bool) -> None:
    summary.figures["kernel"] = platform.release()
    summary.step("starting what the role deployed: API (SQLite), root helper, host agent, libvirt with our hook")
    set_up_agent()
    product = deployed()
    with libvirt_guests(keep=keep) as guests, ThreadPoolExecutor(1) as pool:
        demo = Demo(summary, product, guests, Api(), pool.submit(zoom, *DRAWING))
        demo.shown("get", "hosts")
        demo.shown("get", "gpus")
        started = {tenant: demo.tenant_with_a_vm(tenant, keep=keep) for tenant in SHARES}
        demo.quotas_hold()
        demo.without_a_claim()
        demo.both_draw(started)
        with timeline.recorded(tuple(SHARES), summary.started_s) as samples:
            before = {tenant: len(frames(guest.console())) for tenant, guest in started.items()}
            summary.step("both guests draw; entitled against obtained, live")
            demo.watch("as claimed", {tenant: share / 1000 for tenant, share in SHARES.items()})
            demo.change_quota(started)
        summary.figures["timeline"] = samples
        demo.frames_of(started, samples, before)
        demo.kill_and_start_again(started["green"])
        if not keep:
            demo.give_back(started["blue"])
        demo.works_again(started["green"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--keep", action="store_true", help="leave guests and product as they are")
    options = parser.parse_args()
    summary = Summary()
    try:
        run(summary, keep=options.keep)
    except Exception as error:
        what, _, _ = str(error).partition("\n")
        summary.check("the demo ran to its end", ok=False, error=f"{type(error).__name__}: {what}")
        raise
    finally:
        summary.figures["seconds"] = round(time.monotonic() - summary.started_s, 1)
        summary.write()
    passed = sum(check["ok"] for check in summary.checks)
    print("\nA run longer than timeslice and kernel is the emulated processors' doing: see make test-time.")
    print(f"{passed} of {len(summary.checks)} checks ok, {summary.figures['seconds']} s", flush=True)
    return 0 if summary.ok else 1


if __name__ == "__main__":
    sys.exit(main())
