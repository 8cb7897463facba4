# SPDX-License-Identifier: Apache-2.0
"""Kill agent and helper, on the real module, at each place where they can leave something half done.

The tests run a story of two VMs. A process that dies is restarted, as systemd does, and the user repeats a step that
failed. After each step the host is in the state that it should be in.
"""

import sys
from functools import partial
from pathlib import Path

import pytest

from tests.product import hook
from tests.product.host import Host, new_uuid
from tests.product.services import AGENT, HELPER, dying
from tests.rig import product

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "agent"))
from vgpumgr_agent import faults

pytestmark = pytest.mark.long

ENROLMENT = ("enroll.answered", "enroll.stored")
# In the order of the story, so that one story passes most of them.
AGENT_POINTS = (
    "desired.received",
    "desired.stored",
    "reconcile.planned",
    "reconcile.acted",
    "report.sent",
    "meter.added",
    "meter.counted",
    "hook.configured",
    "hook.prepared",
    "hook.ready",
    "bind.answered",
    "hook.released",
    "bind.stored",
)
HELPER_POINTS = (
    "configure.attached",
    "configure.set",
    "prepare.attached",
    "prepare.recorded",
    "prepare.created",
    "prepare.set",
    "prepare.granted",
    "apply.set",
    "remove.closed",
    "remove.stopped",
    "remove.removed",
    "withdraw.withdrawn",
    "remove.forgotten",
    "forget.deleted",
)
STORIES_MAX = 4
LIMIT_S = 300  # per step; several processes may die in it one after the other
TOKEN_FILE = Path("/etc/vgpumgr/enroll-token")


eventually = partial(product.eventually, timeout_s=LIMIT_S)


def start(host: Host, slice_id: str, vm_uuid: str) -> None:
    """Start it again and again, as a user does. libvirt reports each failed start as released."""

    def started() -> bool:
        if hook.ask("prepare", slice_id, vm_uuid=vm_uuid)["ok"]:
            return True
        hook.ask("release", slice_id, vm_uuid=vm_uuid, reason="failed")
        return False

    eventually(started, what="the VM starts")
    host.open(slice_id, vm_uuid=vm_uuid)
    hook.ask("started", slice_id, vm_uuid=vm_uuid)


def gone(host: Host, slice_id: str) -> bool:
    return slice_id not in host.devices() and slice_id not in host.records()


def live(host: Host) -> None:
    """Pass every crash point. The second slice is bound by its VM's first start."""
    host.api.tenant("blue", share_permille=400)
    host.api.tenant("green", share_permille=200)
    first_vm, second_vm = new_uuid(), new_uuid()
    first = host.claim("blue", share_permille=400, vm_uuid=first_vm)
    second = host.claim("green", share_permille=200)
    start(host, first, first_vm)
    start(host, second, second_vm)
    eventually(lambda: host.weights() == {"blue": 400, "green": 200}, what="both groups have their weights")
    bound = host.api.slice(second)
    assert bound is not None
    assert bound["vm_uuid"] == second_vm

    host.api.quota("blue", share_permille=200)
    eventually(lambda: host.gpu.slice_stats(first).weight == 200, what="the slice follows the quota")
    eventually(lambda: host.weights() == {"blue": 200, "green": 200}, what="the group follows the quota")

    host.stop(first)
    eventually(lambda: gone(host, first), what="the device of the stopped VM is gone")
    assert host.is_open(second)

    eventually(lambda: hook.ask("prepare", first, vm_uuid=first_vm)["ok"], what="the first slice is ready again")
    eventually(lambda: hook.ask("unplug", first, vm_uuid=first_vm)["ok"], what="the slice is unplugged")
    eventually(lambda: gone(host, first), what="the device that was given back is gone")

    host.api.delete(second)
    assert host.is_open(second)
    host.stop(second)
    eventually(lambda: host.api.slice(second) is None, what="capacity and quota are back")
    eventually(lambda: host.weights() == {"blue": 200}, what="the group without slices is forgotten")
    assert host.empty()

    start(host, first, first_vm)
    assert host.devices() == host.records() == {first}
    assert host.memory_reserved() == 16 << 20


def test_killed_everywhere(host: Host) -> None:
    """Each death arms the next crash point of either process; the story repeats until every crash point has fired."""
    with dying({HELPER: HELPER_POINTS, AGENT: AGENT_POINTS}) as left:
        for _ in range(STORIES_MAX):
            live(host)
            host.clear()
            if not any(left.values()):
                break
        live(host)
    assert left == {HELPER.name: [], AGENT.name: []}, "points that were not reached"


def test_every_point_is_tried() -> None:
    """tests/api/http/test_mutual_tls.py has the crash points of certificates, tests/chain those of executors."""
    tried = [*HELPER_POINTS, *faults.EXECUTOR_POINTS, *AGENT_POINTS, *ENROLMENT, *faults.CERTIFICATE_POINTS]
    assert sorted(tried) == sorted(faults.POINTS)


def test_killed_while_enrolling(host: Host) -> None:
    """A one-time token works once: if the certificate got lost, enrolling needs another token; a stored one is kept."""
    vm_uuid = new_uuid()
    host.api.tenant("blue", share_permille=400)
    slice_id = host.claim("blue", share_permille=400, vm_uuid=vm_uuid)
    host.play(slice_id, vm_uuid=vm_uuid)
    try:
        for point in ENROLMENT:
            TOKEN_FILE.write_text(host.api.call("POST", f"/v1/hosts/{host.product.host}:reenroll")["enroll_token"])
            AGENT.restart(fault=point, wait=False)
            eventually(lambda: not AGENT.runs(), what=f"it dies at {point}")
            assert host.devices() == {slice_id}
        AGENT.start()
        host.api.delete(slice_id)
        host.stop(slice_id)
        eventually(lambda: host.api.slice(slice_id) is None, what="the host hears and confirms a deletion again")
    finally:
        AGENT.restart()
