# SPDX-License-Identifier: Apache-2.0
"""Answers that lack claims which a host has: from an empty, a foreign or an older database. They remove no device."""

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.product.hook import refusal
from tests.product.host import Host, new_uuid
from tests.product.services import AGENT, API
from tests.rig.api import TOKEN_FILE, ApiRefusedError
from tests.rig.product import BIN, eventually

pytestmark = pytest.mark.long

DATABASE = Path("/var/lib/vgpumgr/api/vgpumgr.db")
ENROLL_TOKEN_FILE = Path("/etc/vgpumgr/enroll-token")
USER = "vgpumgr-api"


def admin(*words: str) -> str:
    """Run `vgpumgr-api` the way the role does."""
    command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", str(BIN / "vgpumgr-api"), *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=120, umask=0o077).stdout


def store(directory: Path) -> None:
    """Copy the database while the API is stopped."""
    directory.mkdir(exist_ok=True)
    for file in DATABASE.parent.glob(f"{DATABASE.name}*"):
        shutil.copy2(file, directory)


def restore(directory: Path) -> None:
    """Restore a copy while the API is stopped."""
    for file in DATABASE.parent.glob(f"{DATABASE.name}*"):
        file.unlink()
    for file in directory.iterdir():
        shutil.copy2(file, DATABASE.parent)
        shutil.chown(DATABASE.parent / file.name, USER, USER)


@dataclass(frozen=True)
class Claimed:
    """One slice in a running VM and one slice of a stopped VM."""

    host: Host
    vm_uuid: str
    running: str
    standing: str

    def nothing_happened(self) -> None:
        """The running VM has its slice and share, the host still knows the two slices, and the other VM starts."""
        assert self.host.is_open(self.running)
        assert self.host.gpu.slice_stats(self.running).scheduled
        assert self.running in self.host.records()
        assert self.host.knows(self.running)
        assert refusal(self.standing, vm_uuid=self.vm_uuid) == ""
        assert self.standing in self.host.devices()


@pytest.fixture
def claimed(host: Host) -> Iterator[Claimed]:
    host.api.tenant("blue", share_permille=800)
    vm_uuid = new_uuid()
    running = host.claim("blue", share_permille=100, vm_uuid=vm_uuid)
    standing = host.claim("blue", share_permille=100, vm_uuid=vm_uuid)
    host.play(running, vm_uuid=vm_uuid)
    yield Claimed(host, vm_uuid, running, standing)
    # Devices of claims that no database knows any more have no owner: the agent rightly leaves them in place.
    known = {claim["id"] for claim in host.api.items("/v1/slices")}
    for slice_id in host.devices() - known:
        if slice_id in host.played:
            host.crash(slice_id)
            eventually(lambda one=slice_id: not host.is_open(one), what="it is closed")  # type: ignore[misc]
        host.gpu.sysfs.remove(slice_id)
    if any(claim["unnamed_since"] is not None for claim in host.remembered()["claims"]):  # it may start them for a day
        declare_restored(host)
        confirm_epoch(host)
    eventually(lambda: takes_claims(host), what="the host takes claims again")


def takes_claims(host: Host) -> bool:
    """Whether the host accepts claims. It accepts none while it reports devices that the database does not know."""
    try:
        host.api.call("POST", "/v1/slices?validate_only=true", {"tenant": "blue", "profile": "p100"})
    except ApiRefusedError as refused:
        if refused.code != "capacity.none":
            raise
        return False
    return True


def declare_restored(host: Host) -> None:
    """Declare the database right though it has lost commits, following the manual."""
    API.kill()
    epoch = admin("new-epoch").strip()
    API.start()
    AGENT.restart()
    eventually(lambda: host.remembered()["seen_epoch"] == epoch, what="the agent sees the new epoch")


def confirm_epoch(host: Host) -> None:
    host.product.text("host", "confirm-epoch", host.product.host)
    AGENT.restart()
    eventually(lambda: host.remembered()["trusted"], what="the agent trusts the database again")


def test_an_empty_answer(claimed: Claimed) -> None:
    """The answer has the right epoch and a newer generation, but neither claims nor tombstones."""
    host = claimed.host
    API.kill()
    with closing(sqlite3.connect(DATABASE)) as database, database:
        rows = database.execute("SELECT count(*) FROM slices").fetchone()[0]
        for table in ("slice_observations", "slices"):
            database.execute(f"DELETE FROM {table}")
        database.execute("UPDATE gpus SET share_used = 0, mem_used = 0")
        database.execute("UPDATE quotas SET share_used = 0, mem_used = 0, slices_used = 0")
        database.execute("UPDATE hosts SET desired_generation = desired_generation + 1")
    assert rows == 2
    generation = host.remembered()["generation"]
    API.start()
    eventually(lambda: host.remembered()["generation"] > generation, what="the agent has the empty answer")
    assert host.remembered()["trusted"]
    claimed.nothing_happened()
    assert host.weights() == {"blue": 200}


def test_another_database(claimed: Claimed, tmp_path: Path) -> None:
    """A fresh database, in which this host is created and enrolled anew; then its own database again, to be
    confirmed."""
    host = claimed.host
    epoch = host.remembered()["epoch"]
    API.kill()
    store(tmp_path)
    token = TOKEN_FILE.read_text()
    for file in DATABASE.parent.glob(f"{DATABASE.name}*"):
        file.unlink()
    try:
        TOKEN_FILE.write_text(admin("init"))
        API.start()
        ENROLL_TOKEN_FILE.write_text(host.api.call("POST", "/v1/hosts", {"name": host.product.host})["enroll_token"])
        AGENT.restart()
        eventually(lambda: not host.remembered()["trusted"], what="the agent has the other database's answer")
        claimed.nothing_happened()
    finally:
        API.kill()
        restore(tmp_path)
        TOKEN_FILE.write_text(token)
        API.start()
        enroll = host.api.call("POST", f"/v1/hosts/{host.product.host}:reenroll")["enroll_token"]
        ENROLL_TOKEN_FILE.write_text(enroll)
        AGENT.restart()
    eventually(lambda: host.remembered()["seen_epoch"] == epoch, what="the agent sees its own database again")
    claimed.nothing_happened()
    confirm_epoch(host)
    claimed.nothing_happened()
    goes_on(host, claimed)


def test_an_older_database(claimed: Claimed, tmp_path: Path) -> None:
    """The older database lacks a claim with a running VM and has a deleted one. Then it is declared restored, and
    confirmed."""
    host = claimed.host
    deleted = host.claim("blue", share_permille=100, vm_uuid=claimed.vm_uuid)
    API.kill()
    store(tmp_path)
    API.start()
    host.api.delete(deleted)
    eventually(lambda: host.api.slice(deleted) is None, what="the claim is deleted")
    later = host.claim("blue", share_permille=100, vm_uuid=claimed.vm_uuid)
    host.play(later, vm_uuid=claimed.vm_uuid)

    def nothing_happened() -> None:
        claimed.nothing_happened()
        assert host.is_open(later)
        assert host.gpu.slice_stats(later).scheduled
        assert host.knows(later)

    API.kill()
    restore(tmp_path)
    API.start()
    eventually(lambda: not host.remembered()["trusted"], what="the agent sees that its orders went back")
    nothing_happened()

    declare_restored(host)
    host.api.delete(claimed.standing)
    AGENT.restart()
    nothing_happened()

    confirm_epoch(host)
    eventually(lambda: host.api.slice(claimed.standing) is None, what="what was deleted is confirmed gone")
    eventually(lambda: claimed.standing not in host.devices(), what="its device is gone")
    assert host.remembered()["trusted"]
    assert host.is_open(claimed.running)
    assert host.is_open(later)
    assert not host.knows(later), "no VM starts any more with a claim that the confirmed database lacks"
    assert not takes_claims(host)
    host.stop(later)
    # The agent gives the API some time to name the claims that the agent does not know.
    eventually(lambda: takes_claims(host), what="the host takes claims again", timeout_s=600)
    goes_on(host, claimed)


def goes_on(host: Host, claimed: Claimed) -> None:
    """Check that claims and deletions reach the host again."""
    fresh = host.claim("blue", share_permille=100, vm_uuid=claimed.vm_uuid)
    host.play(fresh, vm_uuid=claimed.vm_uuid)
    host.stop(fresh)
    host.api.delete(fresh)
    eventually(lambda: host.api.slice(fresh) is None, what="a deletion is confirmed")
    assert fresh not in host.devices()
    assert host.is_open(claimed.running)
