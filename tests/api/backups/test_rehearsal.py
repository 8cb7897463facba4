# SPDX-License-Identifier: Apache-2.0
"""Yesterday's backup is restored while hosts have slices that were claimed since then. Agents and API are real.

No slice is deleted without a request, no place is given to two claims, and quotas are right at the end.
"""

import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session
from vgpumgr_agent.api import ApiRefusedError
from vgpumgr_agent.refused import Refused
from vgpumgr_api.admin import ACTOR
from vgpumgr_api.backups import make, restore
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.models import Host, Installation
from vgpumgr_api.db.observations import HostReport

from tests.api.backups.machine import Machine
from tests.api.concurrency.audit import Audit
from tests.api.concurrency.deployment import Caller, Deployment, deployed
from tests.api.http.process import command, settings_file
from vgpumgr.wire.fleet import LEASE_S

if TYPE_CHECKING:
    from tests.api.cluster import Cluster

MIB = 1 << 20
SHARE = 300
LIMITS = {"share_permille": 4 * SHARE, "mem_bytes": 1024 * MIB, "slices": 4}


@pytest.fixture
def url(request: pytest.FixtureRequest, engine_name: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh database; its server lives longer than the test."""
    if engine_name == "sqlite":
        path = tmp_path / "api.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    cluster: Cluster = request.getfixturevalue("postgresql")
    yield cluster.create("rehearsal", template=request.getfixturevalue("postgresql_template"))
    cluster.drop("rehearsal")


@pytest.fixture
def deployment(url: str, tmp_path: Path) -> Iterator[Deployment]:
    with deployed(tmp_path, url, replicas=1) as running:
        yield running
        assert running.server_errors() == []


class Site:
    """One tenant, one profile, and two hosts with two GPUs each."""

    def __init__(self, deployment: Deployment, directory: Path) -> None:
        self.deployment = deployment
        self.operator = deployment.caller()
        self.directory = directory
        made(self.operator, "/v1/tenants", {"name": "acme"})
        assert self.operator.ask("PATCH", "/v1/quotas/acme", LIMITS, if_match=1).status == 200
        made(self.operator, "/v1/profiles", {"name": "p", "share_permille": SHARE, "mem_bytes": 16 * MIB})
        self.machines = {name: self._machine(name) for name in ("one", "two")}
        self.connect()
        self.step()

    def _machine(self, name: str) -> Machine:
        return Machine(self.directory / name, name, made(self.operator, "/v1/hosts", {"name": name})["enroll_token"])

    def connect(self) -> None:
        address = self.deployment.replicas[0].address
        assert address is not None
        for machine in self.machines.values():
            machine.connect(f"http://{address[0]}:{address[1]}")

    def step(self) -> None:
        for machine in self.machines.values():
            machine.step()

    def claim(self, host: str, profile: str = "p") -> tuple[str, UUID]:
        vm = uuid4()
        body = {"tenant": "acme", "profile": profile, "vm_uuid": str(vm), "host": host}
        return str(made(self.operator, "/v1/slices", body)["id"]), vm

    def start(self, host: str, slice_id: str, vm: UUID) -> None:
        self.machines[host].step()
        self.machines[host].start_vm(slice_id, vm)
        self.machines[host].report()

    def refusals(self, host: str) -> dict[str, int]:
        """Returns why this host takes no claim."""
        body = {"tenant": "acme", "profile": "p", "host": host}
        reply = self.operator.ask("POST", "/v1/slices", body)
        assert reply.code == "capacity.none", reply.body
        reasons = {each["code"]: each["count"] for each in reply.body["reasons"]}
        return {code: count for code, count in reasons.items() if code != "host.other"}

    def used(self) -> dict[str, int]:
        quota = self.operator.ask("GET", "/v1/quotas/acme").body
        return {resource: quota[f"used_{resource}"] for resource in LIMITS}

    def devices(self) -> set[str]:
        return set().union(*(machine.devices for machine in self.machines.values()))

    def removals(self) -> int:
        return sum(machine.removals() for machine in self.machines.values())

    def close(self) -> None:
        for machine in self.machines.values():
            machine.close()


def restored(site: Site, deployment: Deployment, settings: Path, file: Path) -> None:
    deployment.replicas[0].kill()
    run("restore", "--force", str(file), settings=settings)
    deployment.replicas[0].start()
    site.connect()


def made(caller: Caller, path: str, body: dict[str, Any]) -> Any:
    reply = caller.ask("POST", path, body)
    assert reply.status == 201, reply.body
    return reply.body


def run(*words: str, settings: Path) -> str:
    done = command(*words, settings=settings)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def site(deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr("vgpumgr_agent.hook.admission._FIRST_ANSWER_S", 0)
    monkeypatch.setattr("vgpumgr_agent.control_plane.WAIT_S", 0)
    made_site = Site(deployment, tmp_path)
    with contextlib.closing(made_site):
        yield made_site


def test_yesterdays_backup(site: Site, deployment: Deployment, tmp_path: Path) -> None:
    settings, file = settings_file(tmp_path, database=deployment.url), tmp_path / "yesterday.backup"
    kept, kept_vm = site.claim("one")
    ended, ended_vm = site.claim("one")
    site.start("one", kept, kept_vm)
    site.start("one", ended, ended_vm)
    run("backup", str(file), settings=settings)

    # Today, one claim ends and its host confirms that. Two claims are made, one on each host, and their VMs run.
    site.machines["one"].stop_vm(ended, ended_vm)
    assert site.operator.ask("DELETE", f"/v1/slices/{ended}").status == 202
    site.machines["one"].step()
    assert ended not in site.machines["one"].devices
    new, new_vm = site.claim("one")
    other, other_vm = site.claim("two")
    site.start("one", new, new_vm)
    site.start("two", other, other_vm)
    running, removals = {kept, new, other}, site.removals()
    assert site.devices() == running

    deployment.replicas[0].kill()
    assert "--force" in command("restore", str(file), settings=settings).stderr
    assert "confirm-epoch" in run("restore", "--force", str(file), settings=settings)
    deployment.replicas[0].start()
    site.connect()

    # No host is confirmed: whatever the hosts are told, they remove nothing and take no claim.
    for _ in range(2):
        assert site.refusals("one") == {"host.unconfirmed": 2}
        site.step()
        assert running <= site.devices()
    assert site.removals() == removals

    # The operator confirms too early, before anybody compared. Nothing is removed, and no place is given twice.
    for name in site.machines:
        assert site.operator.ask("POST", f"/v1/hosts/{name}:confirm-epoch").status == 200
    for _ in range(2):
        site.step()
        assert site.removals() == removals
        assert running <= site.devices()
        assert site.refusals("one") == {"gpu.unknown_slices": 2}
        assert site.refusals("two") == {"gpu.unknown_slices": 2}
    assert site.used()["slices"] == 2  # the claims that the backup knows: one that runs, and one that had ended
    assert Audit(deployment.url).violations() == []

    # The procedure from the documentation: deleted claims that came back are deleted again; an unknown slice ends with
    # its VM.
    assert site.operator.ask("DELETE", f"/v1/slices/{ended}").status == 202
    for host, unknown, vm in (("one", new, new_vm), ("two", other, other_vm)):
        machine = site.machines[host]
        machine.stop_vm(unknown, vm)
        if unknown in machine.devices:
            machine.kernel.do_write(str(machine.kernel.paths.slice(unknown) / "remove"), "1")
        machine.step()
    assert site.devices() == {kept}
    assert site.used()["slices"] == 1
    again, again_vm = site.claim("two")
    site.start("two", again, again_vm)
    for _ in range(2):
        site.claim("one")
    reply = site.operator.ask("POST", "/v1/slices", {"tenant": "acme", "profile": "p"})
    assert reply.code == "quota.exceeded"
    site.step()
    assert all(share <= 1000 for machine in site.machines.values() for share in machine.shares().values())
    assert site.machines["one"].running == {kept}
    assert site.used() == {"share_permille": 4 * SHARE, "mem_bytes": 64 * MIB, "slices": 4}
    assert Audit(deployment.url).violations() == []


def test_a_claim_made_since_whose_vm_is_stopped_shares_its_place_with_nobody(
    site: Site, deployment: Deployment, tmp_path: Path
) -> None:
    settings, file = settings_file(tmp_path, database=deployment.url), tmp_path / "a.backup"
    made(site.operator, "/v1/profiles", {"name": "whole", "share_permille": 1000, "mem_bytes": 16 * MIB})
    limits = {**LIMITS, "share_permille": 5000}
    assert site.operator.ask("PATCH", "/v1/quotas/acme", limits, if_match=2).status == 200
    run("backup", str(file), settings=settings)
    lost, lost_vm = site.claim("one", "whole")
    machine = site.machines["one"]
    site.start("one", lost, lost_vm)
    machine.stop_vm(lost, lost_vm)
    machine.step()
    restored(site, deployment, settings, file)
    machine.step()
    machine.start_vm(lost, lost_vm)  # no operator has confirmed yet that the claim is gone
    machine.stop_vm(lost, lost_vm)
    machine.step()
    assert lost not in machine.devices

    assert site.operator.ask("POST", "/v1/hosts/one:confirm-epoch").status == 200
    machine.report()
    assert site.refusals("one") == {"gpu.unknown_slices": 2}
    machine.step()
    others = [site.claim("one", "whole") for _ in range(2)]
    for other, vm in others:
        site.start("one", other, vm)
    with pytest.raises(Refused, match=r"no claim"):
        machine.agent.hooks.prepare(vm_uuid=lost_vm, devices=(), metadata=(UUID(lost),), domain="test")
    assert machine.running == {other for other, _ in others}
    assert set(machine.shares().values()) == {1000}


def test_a_claim_that_is_back_from_the_dead_starts_no_vm_in_a_place_that_was_given_to_others(
    site: Site, deployment: Deployment, tmp_path: Path
) -> None:
    settings, file = settings_file(tmp_path, database=deployment.url), tmp_path / "a.backup"
    made(site.operator, "/v1/profiles", {"name": "whole", "share_permille": 1000, "mem_bytes": 16 * MIB})
    limits = {**LIMITS, "share_permille": 5000}
    assert site.operator.ask("PATCH", "/v1/quotas/acme", limits, if_match=2).status == 200
    machine = site.machines["one"]
    ended = [site.claim("one", "whole") for _ in range(2)]
    machine.step()
    run("backup", str(file), settings=settings)
    for slice_id, _ in ended:
        assert site.operator.ask("DELETE", f"/v1/slices/{slice_id}").status == 202
    machine.step()
    later = [site.claim("one", "whole") for _ in range(2)]
    for slice_id, vm in later:
        site.start("one", slice_id, vm)
    restored(site, deployment, settings, file)

    def refused(code: str) -> None:
        for slice_id, vm in ended:
            with pytest.raises(Refused) as refusal:
                machine.start_vm(slice_id, vm)
            assert refusal.value.code == code

    machine.step()
    refused("host.unconfirmed")
    assert site.operator.ask("POST", "/v1/hosts/one:confirm-epoch").status == 200
    machine.step()
    refused("gpu.unknown_slices")
    assert machine.running == {slice_id for slice_id, _ in later}

    for slice_id, vm in later:
        machine.stop_vm(slice_id, vm)
        machine.kernel.do_write(str(machine.kernel.paths.slice(slice_id) / "remove"), "1")
    for slice_id, vm in ended:
        machine.start_vm(slice_id, vm)
    machine.step()
    assert machine.running == {slice_id for slice_id, _ in ended}
    assert Audit(deployment.url).violations() == []


def test_a_host_made_since_is_made_anew_and_confirmed(site: Site, deployment: Deployment, tmp_path: Path) -> None:
    settings, file = settings_file(tmp_path, database=deployment.url), tmp_path / "a.backup"
    run("backup", str(file), settings=settings)
    site.machines["three"] = machine = site._machine("three")
    site.connect()
    site.step()
    lost, lost_vm = site.claim("three")
    idle, idle_vm = site.claim("three")
    site.start("three", lost, lost_vm)
    restored(site, deployment, settings, file)
    machine.give_token(made(site.operator, "/v1/hosts", {"name": "three"})["enroll_token"])
    with pytest.raises(ApiRefusedError):  # the API does not know its credential, so the agent enrols
        machine.step()
    for _ in range(2):
        machine.step()
        assert site.refusals("three") == {"host.unconfirmed": 2}
        machine.start_vm(idle, idle_vm)
        machine.stop_vm(idle, idle_vm)
    machine.step()
    removals = machine.removals()

    assert site.operator.ask("POST", "/v1/hosts/three:confirm-epoch").status == 200
    for _ in range(2):
        machine.step()
        assert site.refusals("three") == {"gpu.unknown_slices": 2}
    assert (machine.running, machine.removals()) == ({lost}, removals)
    with pytest.raises(Refused, match=r"no claim"):
        machine.agent.hooks.prepare(vm_uuid=idle_vm, devices=(), metadata=(UUID(idle),), domain="test")
    machine.stop_vm(lost, lost_vm)
    machine.kernel.do_write(str(machine.kernel.paths.slice(lost) / "remove"), "1")
    machine.step()
    new, new_vm = site.claim("three")
    site.start("three", new, new_vm)
    machine.stop_vm(new, new_vm)
    assert site.operator.ask("DELETE", f"/v1/slices/{new}").status == 202
    machine.step()
    assert site.used()["slices"] == 0
    assert machine.devices == set()


def test_commits_that_a_failover_lost_delete_nothing_and_are_noticed(
    site: Site, deployment: Deployment, tmp_path: Path
) -> None:
    settings, file = settings_file(tmp_path, database=deployment.url), tmp_path / "a.backup"
    machine = site.machines["one"]
    known, known_vm = site.claim("one")
    machine.step()
    run("backup", str(file), settings=settings)
    lost, lost_vm = site.claim("one")
    machine.step()
    lose_commits(site, deployment, settings, file)

    # The deletion makes a document with the same number as the host's own.
    assert site.operator.ask("DELETE", f"/v1/slices/{known}").status == 202
    machine.step()
    assert site.operator.ask("GET", f"/v1/slices/{known}").body["state"] == "releasing"
    assert site.refusals("one") == {"gpu.unknown_slices": 2}
    machine.start_vm(known, known_vm)
    machine.stop_vm(known, known_vm)
    for _ in range(2):
        machine.step()
    assert site.operator.ask("GET", f"/v1/slices/{known}").status == 404

    # An unknown slice keeps its place for one lease.
    machine.start_vm(lost, lost_vm)
    machine.stop_vm(lost, lost_vm)
    machine.step()
    assert site.refusals("one") == {"gpu.unknown_slices": 2}
    machine.wait(LEASE_S)
    machine.step()
    site.claim("one")


def lose_commits(site: Site, deployment: Deployment, settings: Path, file: Path) -> None:
    """Replaces the database with that of `file`, unnoticed, like a failover to a standby that lags."""
    database = Database(deployment.url)
    epoch = database.run(lambda session: session.scalars(select(Installation.epoch)).one(), read_only=True)

    def undeclare(session: Session) -> None:
        session.scalars(select(Installation)).one().epoch = epoch
        session.execute(
            update(Host).values(epoch_confirmed=True, desired_generation=Host.desired_generation - 1),
        )
        session.execute(update(HostReport).values(unknown_slices=0))

    deployment.replicas[0].kill()
    run("restore", "--force", str(file), settings=settings)
    database.run(undeclare)
    database.close()
    deployment.replicas[0].start()
    site.connect()


@pytest.mark.long
def test_confirmed_before_its_first_report_a_host_takes_nothing(
    site: Site, deployment: Deployment, tmp_path: Path
) -> None:
    settings, file = settings_file(tmp_path, database=deployment.url), tmp_path / "a.backup"
    run("backup", str(file), settings=settings)
    new, vm = site.claim("one")
    site.start("one", new, vm)
    restored(site, deployment, settings, file)
    assert site.operator.ask("POST", "/v1/hosts/one:confirm-epoch").status == 200
    assert site.refusals("one") == {"gpu.unknown_slices": 2}
    site.step()
    assert site.refusals("one") == {"gpu.unknown_slices": 2}
    assert site.devices() == {new}


@pytest.mark.long
def test_a_backup_made_while_claims_come_and_go_is_of_one_moment(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vgpumgr_agent.control_plane.WAIT_S", 0)
    site = Site(deployment, tmp_path)
    stop, made_claims, complaints = threading.Event(), [0], []

    def churn(seed: int) -> None:
        caller = deployment.caller(seed=seed)
        while not stop.is_set():
            reply = caller.ask("POST", "/v1/slices", {"tenant": "acme", "profile": "p"})
            if reply.status == 201:
                made_claims[0] += 1
                caller.ask("DELETE", f"/v1/slices/{reply.body['id']}")
            elif reply.code not in ("quota.exceeded", "capacity.none"):
                complaints.append(reply.body)

    def obey() -> None:
        while not stop.is_set():
            site.step()

    workers = [threading.Thread(target=churn, args=(seed,)) for seed in range(4)] + [threading.Thread(target=obey)]
    for worker in workers:
        worker.start()
    database = Database(deployment.url)
    try:
        rounds = []
        for number in range(4):
            before = made_claims[0]
            make.make(database, tmp_path / f"{number}.backup")
            while made_claims[0] < before + 10 and not complaints:
                stop.wait(0.01)
            rounds.append(restore.check(tmp_path / f"{number}.backup"))
    finally:
        stop.set()
        for worker in workers:
            worker.join()
        database.close()
        site.close()
    assert complaints == []
    assert len({header.rows for header in rounds}) > 1, "nothing happened between the backups"
    for number in range(4):
        scratch = f"sqlite:///{tmp_path}/{number}.db"
        restored = Database(scratch)
        restore.restore(restored, tmp_path / f"{number}.backup", ACTOR, force=False)
        restored.close()
        assert Audit(scratch).violations() == []
