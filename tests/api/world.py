# SPDX-License-Identifier: Apache-2.0
"""A fleet in few words, built through the services."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from vgpumgr_api.actors import Actor, authenticate, local_operator
from vgpumgr_api.auth import tokens
from vgpumgr_api.claims import claims, profiles, reservations
from vgpumgr_api.db.database import Database
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import events
from vgpumgr_api.events.events import Begun
from vgpumgr_api.fleet import agents, gpus, hosts
from vgpumgr_api.resources.paging import PageRequest
from vgpumgr_api.tenancy import quotas, tenants

from vgpumgr.wire.common import Mode
from vgpumgr.wire.fleet import Desired, Enroll, Report, ReportedGpu, ReportedGroup, ReportedSlice, ReportedType
from vgpumgr.wire.resources import (
    EventPage,
    Gpu,
    GpuPatch,
    Host,
    HostCreate,
    HostPatch,
    Profile,
    ProfileCreate,
    Quota,
    QuotaPatch,
    Reservation,
    ReservationCreate,
    Slice,
    SliceBatch,
    SliceCreate,
    Slices,
    Tenant,
    TenantCreate,
    TokenCreate,
    TokenRole,
)

GIB = 1 << 30
ADDRESS = "0000:00:10.0"
PLENTY = {"share_permille": 1_000_000, "mem_bytes": 1 << 50, "slices": 10_000}


def gpu(address: str = ADDRESS, *, mem_bytes: int = 16 * GIB, types: Iterable[int] = (1, 4, 16)) -> ReportedGpu:
    """Returns the inventory of a GPU whose types have these sizes in GiB."""
    return ReportedGpu(
        address=address,
        engine="soft",
        backend="kmod",
        mem_bytes=mem_bytes,
        timeslice_min_us=100,
        max_chunk_us=500,
        types=[ReportedType(id=f"vgpumgr-{gib}g", mem_bytes=gib * GIB) for gib in types],
    )


def absent(slice_id: UUID, **members: Any) -> ReportedSlice:
    """Returns a host's report about a slice: by default, that it has no such device."""
    said: dict[str, Any] = {
        "id": slice_id,
        "generation": 1,
        "present": False,
        "open": False,
        "vm_uuid": None,
        "applied_permille": None,
        "run_ns": 0,
        "items": 0,
    }
    return ReportedSlice(**(said | members))


@dataclass(kw_only=True)
class Agent:
    """Sends what a host's agent would send; counts its own reports."""

    database: Database
    name: str
    host_id: UUID
    secret: str
    boot_id: UUID = field(default_factory=uuid4)
    agent_epoch: int = 1
    seq: int = 0
    inventory: list[ReportedGpu] = field(default_factory=lambda: [gpu()])

    @property
    def actor(self) -> Actor:
        return self.database.run(lambda session: authenticate(session, self.secret), read_only=True)

    def desired(self) -> Desired:
        actor = self.actor
        return self.database.run(lambda session: agents.desired(session, actor, self.name), read_only=True)

    def report(
        self,
        *,
        slices: Iterable[ReportedSlice] = (),
        groups: Iterable[ReportedGroup] = (),
        desired: Desired | None = None,
        **members: Any,
    ) -> bool:
        """Returns whether the report was accepted."""
        self.seq += 1
        said: dict[str, Any] = {
            "boot_id": self.boot_id,
            "agent_epoch": self.agent_epoch,
            "seq": self.seq,
            "agent_version": "1",
            "desired_epoch": desired.epoch if desired else None,
            "desired_generation": desired.generation if desired else 0,
            "gpus": self.inventory,
            "groups": list(groups),
            "slices": list(slices),
            "refusals": [],
        }
        report = Report(**(said | members))
        actor = self.actor
        answer = self.database.run(lambda session: agents.report(session, actor, self.name, report))
        if isinstance(answer, Refusal):
            raise answer
        return answer.accepted

    def confirm_gone(self, *slice_ids: UUID) -> bool:
        """Fetches the desired state and reports these slices absent under it."""
        return self.report(desired=self.desired(), slices=[absent(one) for one in slice_ids])


class World:
    """Makes and changes objects as an operator."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.operator = local_operator("operator:test")
        self._names = count(1)

    def run(self, service: Any, *arguments: Any, actor: Actor | None = None, **options: Any) -> Any:
        """Calls a service in its own transaction."""
        return self.database.run(lambda session: service(session, actor or self.operator, *arguments, **options))

    def events(self, *, actor: Actor | None = None, **options: Any) -> EventPage:
        """Returns a page of events, like the API."""
        unnumbered = self.run(events.number, actor=actor)
        page: EventPage = self.run(events.list_events, actor=actor, unnumbered=unnumbered, **options)
        return page

    def begin_watch(
        self,
        *,
        actor: Actor | None = None,
        after: int | None = 0,
        epoch: str = "",
        about: frozenset[str] = frozenset(),
        tenant: str | None = None,
    ) -> Begun:
        """Returns the position at which a watch starts, like the API."""
        while self.run(events.number, actor=actor):
            pass
        asked = {"after": after, "epoch": epoch, "about": about, "tenant": tenant}
        begun: Begun = self.run(events.begin_watch, actor=actor, **asked)
        return begun

    def tenant(self, name: str = "", *, account: str | None = None, **limits: int) -> Tenant:
        """Makes a tenant with plenty of quota, or with `limits`."""
        name = name or f"tenant-{next(self._names)}"
        made: Tenant = self.run(tenants.create_tenant, TenantCreate(name=name, account=account))
        self.quota(name, **(PLENTY | limits))
        return made

    def quota(self, tenant: str, **limits: int) -> Quota:
        """Changes the limits, if any are given, and returns the quota."""
        quota: Quota = self.run(quotas.get_quota, tenant)
        if not limits:
            return quota
        changed: Quota = self.run(quotas.patch_quota, tenant, QuotaPatch(**limits), if_match=quota.generation)
        return changed

    def profile(self, share: int = 250, gib: int = 1, mode: Mode = Mode.FAIR, name: str = "") -> Profile:
        made: Profile = self.run(
            profiles.create_profile,
            ProfileCreate(
                name=name or f"profile-{next(self._names)}", share_permille=share, mem_bytes=gib * GIB, mode=mode
            ),
        )
        return made

    def host(self, name: str = "", *, inventory: list[ReportedGpu] | None = None) -> Agent:
        """Makes a host that is enrolled and has reported its GPUs."""
        name = name or f"host-{next(self._names)}"
        token = self.run(hosts.create_host, HostCreate(name=name)).enroll_token
        agent = self.enrolled(name, token)
        if inventory is not None:
            agent.inventory = inventory
        assert agent.report(desired=agent.desired())
        return agent

    def enrolled(self, name: str, token: str, *, claims_of: UUID | None = None) -> Agent:
        request = Enroll(agent_version="1", boot_id=uuid4(), claims_of=claims_of)
        enrolled = self.database.run(lambda session: agents.enroll(session, token, request))
        return Agent(database=self.database, name=name, host_id=enrolled.host_id, secret=enrolled.token)

    def claim(self, tenant: str, profile: Profile, *, actor: Actor | None = None, **members: Any) -> Slice:
        claimed: Slice = self.run(
            claims.create_slice, SliceCreate(tenant=tenant, profile=profile.name, **members), actor=actor
        )
        return claimed

    def claim_all(self, requests: list[SliceCreate], **options: Any) -> list[Slice]:
        """Claims slices in one batch."""
        claimed: Slices = self.run(claims.create_slices, SliceBatch(slices=requests), **options)
        return claimed.slices

    def reserve(
        self, tenant: str, profile: Profile, places: int = 1, expires_in_s: int = 60, **more: Any
    ) -> Reservation:
        """Reserves places for claims."""
        request = ReservationCreate(
            tenant=tenant, profile=profile.name, places=places, expires_in_s=expires_in_s, **more
        )
        made: Reservation = self.run(reservations.create_reservation, request)
        return made

    def set_gpu(self, gpu_id: UUID, **members: Any) -> Gpu:
        """Changes labels or the over-commitment ratio of a GPU."""
        generation = self.run(gpus.get_gpu, gpu_id).generation
        changed: Gpu = self.run(gpus.patch_gpu, gpu_id, GpuPatch(**members), if_match=generation)
        return changed

    def set_host(self, name: str, **members: Any) -> Host:
        """Changes state or labels of a host."""
        generation = self.run(hosts.get_host, name).generation
        changed: Host = self.run(hosts.patch_host, name, HostPatch(**members), if_match=generation)
        return changed

    def delete(self, slice_id: UUID, *, if_match: int | None = None, actor: Actor | None = None) -> Slice:
        deleted: Slice = self.run(claims.delete_slice, slice_id, if_match=if_match, actor=actor)
        return deleted

    def slice(self, slice_id: UUID) -> Slice:
        found: Slice = self.run(claims.get_slice, slice_id)
        return found

    def gpus(self) -> list[Gpu]:
        found: list[Gpu] = self.run(gpus.list_gpus, PageRequest()).items
        return found

    def tenant_actor(self, tenant: str) -> Actor:
        """Returns the actor for a token of this tenant."""
        secret = self.run(tokens.create_token, TokenCreate(role=TokenRole.TENANT, subject=tenant)).secret
        return self.database.run(lambda session: authenticate(session, secret))
