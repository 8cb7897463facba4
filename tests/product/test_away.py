# SPDX-License-Identifier: Apache-2.0
"""The API is away, a claim lease ends, and a second agent starts."""

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.product.hook import refusal
from tests.product.host import STATE, Host, new_uuid
from tests.product.services import AGENT, API
from tests.rig.product import BIN, eventually

pytestmark = pytest.mark.long

DAY_S = 24 * 3600


@pytest.fixture
def claims(host: Host) -> Iterator[dict[str, str]]:
    """Three slices that the host knows, after which the API is stopped: one in a running VM, one for a stopped VM, one
    for any VM.

    `vm`: the VM of the first two.
    """
    host.api.tenant("blue", share_permille=800)
    vm_uuid = new_uuid()
    found = {
        "vm": vm_uuid,
        "running": host.claim("blue", share_permille=100, vm_uuid=vm_uuid),
        "standing": host.claim("blue", share_permille=100, vm_uuid=vm_uuid),
        "unbound": host.claim("blue", share_permille=100),
    }
    host.play(found["running"], vm_uuid=vm_uuid)
    API.kill()
    yield found
    if not API.runs():
        API.start()
    AGENT.restart()  # it may be waiting before its next request


def test_what_goes_on_without_the_api(host: Host, claims: dict[str, str]) -> None:
    """The same once more with an agent that was started without an API; then the API comes back."""
    vm_uuid = claims["vm"]
    for _ in range(2):
        assert refusal(claims["standing"], vm_uuid=vm_uuid) == ""
        assert refusal(claims["standing"], vm_uuid=new_uuid()) == "claim.other_vm"
        assert refusal(claims["unbound"], vm_uuid=vm_uuid) == "claim.unbound"
        assert refusal(new_uuid(), vm_uuid=vm_uuid) == "claim.missing"
        assert host.is_open(claims["running"])
        AGENT.restart()
    host.open(claims["standing"], vm_uuid=vm_uuid)
    host.stop(claims["standing"])
    eventually(lambda: host.devices() == {claims["running"]}, what="the device of the stopped VM is gone")

    API.start()
    fresh = host.api.claim("blue", share_permille=100, vm_uuid=vm_uuid)
    assert refusal(fresh, vm_uuid=vm_uuid) == "", "a VM need not wait until the agent asks again"
    assert refusal(claims["unbound"], vm_uuid=vm_uuid) == ""
    bound = host.api.slice(claims["unbound"])
    assert bound is not None
    assert bound["vm_uuid"] == vm_uuid


def test_the_lease_ends(host: Host, claims: dict[str, str]) -> None:
    """A day after the API's last answer no VM starts any more, but running VMs go on. One answer renews the lease."""
    vm_uuid = claims["vm"]
    AGENT.kill()
    contact = STATE / "contact.json"
    stamp = json.loads(contact.read_text())
    for left_s, code in ((600, ""), (-600, "lease.expired")):
        contact.write_text(json.dumps(stamp | {"boottime_s": stamp["boottime_s"] - DAY_S + left_s}))
        AGENT.restart()
        assert refusal(claims["standing"], vm_uuid=vm_uuid) == code
        AGENT.kill()
    assert host.is_open(claims["running"])
    API.start()
    AGENT.start()
    eventually(lambda: refusal(claims["standing"], vm_uuid=vm_uuid) == "", what="the lease is renewed")


def test_a_second_agent_refuses(host: Host) -> None:
    """A second agent is refused, even as root, which may open anything. The first agent is not disturbed."""
    for user in ("vgpumgr", "root"):
        command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", str(BIN / "vgpumgr-agent")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "another vgpumgr-agent uses" in done.stderr
    host.api.tenant("blue", share_permille=100)
    vm_uuid = new_uuid()
    slice_id = host.claim("blue", share_permille=100, vm_uuid=vm_uuid)
    assert refusal(slice_id, vm_uuid=vm_uuid) == ""
