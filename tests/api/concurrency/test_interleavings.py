# SPDX-License-Identifier: Apache-2.0
"""One transaction runs before each statement of another: every interleaving of two requests, tried in turn.

PostgreSQL only, because SQLite has one writer at a time. A transaction that waits for the other's lock continues after
that one commits. A service may refuse. Any other exception would have been a 500. The results must add up in every
case.
"""

import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import event
from vgpumgr_api.auth import tokens
from vgpumgr_api.claims import claims, profiles
from vgpumgr_api.db.database import Database
from vgpumgr_api.errors import Refusal
from vgpumgr_api.fleet import agents, fencing, hosts
from vgpumgr_api.tenancy import quotas, tenants

from tests.api.concurrency.audit import Audit
from tests.api.world import GIB, Agent, World, absent, gpu
from vgpumgr.wire.fleet import Bind, Desired, Enroll
from vgpumgr.wire.resources import (
    HostFence,
    HostPatch,
    HostState,
    Profile,
    QuotaPatch,
    Reservation,
    SliceCreate,
    Tenant,
    TenantCreate,
    TokenCreate,
    TokenRole,
)

STATEMENTS_MAX = 80
PATIENCE_S = 0.1
"""How long a statement waits for the other transaction, which may itself wait for ours."""

ENROLLED, FURNISHED = 2, 2
"""The generations of a host that enrolled and of a quota that was set."""


class Scene:
    """Fresh objects for one interleaving, made on first use; `prepare` makes those that the acts will need."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.read: list[Desired] = []

    def prepare(self, *acts: Callable[["Scene"], object]) -> None:
        for name in sorted({name for act in acts for name in act.__code__.co_names}):
            if isinstance(getattr(Scene, name, None), cached_property):
                getattr(self, name)

    @cached_property
    def agent(self) -> Agent:
        """The host of the scene has a bound, an unbound and a deleted slice."""
        agent = self.world.host(inventory=[gpu(), gpu("0000:00:11.0")])
        self.unbound = self.world.claim(self.project, self.profile, host=agent.name)
        self.bound = self.world.claim(self.project, self.profile, host=agent.name, vm_uuid=uuid4())
        self.dead = self.world.claim(self.account, self.profile, host=agent.name)
        self.world.delete(self.dead.id)
        return agent

    @cached_property
    def bare(self) -> Agent:
        return self.world.host()

    @cached_property
    def account(self) -> str:
        return self.world.tenant().name

    @cached_property
    def project(self) -> str:
        return self.world.tenant(account=self.account).name

    @cached_property
    def empty(self) -> Tenant:
        """A project without slices; it is the only project of its account."""
        return self.world.tenant(account=self.world.tenant().name)

    @cached_property
    def profile(self) -> Profile:
        return self.world.profile(share=100)

    @cached_property
    def unused(self) -> Profile:
        return self.world.profile(share=100)

    @cached_property
    def held(self) -> Reservation:
        return self.world.reserve(self.empty.name, self.unused, places=2, host=self.bare.name)

    # The acts that a scene offers; each is one or more transactions.

    def claim(self) -> object:
        return self.world.claim(self.project, self.profile, host=self.agent.name)

    def claim_for_the_empty_project(self) -> object:
        return self.world.claim(self.empty.name, self.unused, host=self.bare.name)

    def claim_on_the_bare_host(self) -> object:
        return self.world.claim(self.project, self.unused, host=self.bare.name)

    def draw_on_the_bare_host(self) -> object:
        """The tenant has nothing else on that host."""
        return self.world.claim(self.empty.name, self.unused, reservation=self.held.id)

    def try_a_claim(self) -> object:
        request = SliceCreate(tenant=self.project, profile=self.profile.name, host=self.agent.name)
        return self.world.run(claims.create_slice, request, validate_only=True)

    def delete(self) -> object:
        assert self.agent.name == self.unbound.host
        return self.world.delete(self.unbound.id)

    def bind(self) -> object:
        return self._as(self.agent, agents.bind, self.unbound.id, Bind(vm_uuid=uuid4()))

    def read_desired(self) -> object:
        self.read.append(self.agent.desired())
        return self.read

    def fulfil(self) -> object:
        gone = [one.id for one in self.agent.desired().tombstones]
        return self.agent.confirm_gone(*gone)

    def report_everything(self) -> object:
        here = (self.unbound, self.bound, self.dead)
        return self.agent.report(
            desired=self.agent.desired(), slices=[absent(one.id, present=one is not self.dead) for one in here]
        )

    def report_a_smaller_gpu(self) -> object:
        self.agent.inventory = [gpu(mem_bytes=GIB, types=(1,))]
        return self.agent.report()

    def report_from_the_bare_host(self) -> object:
        self.bare.inventory = [gpu(), gpu("0000:00:12.0")]
        return self.bare.report()

    def cut_the_project(self) -> object:
        return self._patch_quota(self.project, 150)

    def cut_the_account(self) -> object:
        return self._patch_quota(self.account, 120)

    def delete_the_empty_project_and_its_account(self) -> object:
        self.world.run(tenants.delete_tenant, self.empty.name, if_match=None)
        return self.world.run(tenants.delete_tenant, self.empty.account, if_match=None)

    def delete_the_unused_profile(self) -> object:
        return self.world.run(profiles.delete_profile, self.unused.name, if_match=1)

    def delete_the_bare_host(self) -> object:
        return self.world.run(hosts.delete_host, self.bare.name, if_match=ENROLLED)

    def cordon_the_bare_host(self) -> object:
        return self.world.run(hosts.patch_host, self.bare.name, HostPatch(state=HostState.CORDONED), if_match=ENROLLED)

    def enrol_the_bare_host_again(self) -> object:
        token = self.world.run(hosts.reenroll, self.bare.name).enroll_token
        request = Enroll(agent_version="2", boot_id=uuid4())
        return self.world.database.run(lambda session: agents.enroll(session, token, request))

    def fence(self) -> object:
        return self._fence(self.agent.name)

    def fence_the_bare_host(self) -> object:
        return self._fence(self.bare.name)

    def make_a_project(self) -> object:
        return self.world.run(tenants.create_tenant, TenantCreate(name=f"p-{uuid4()}", account=self.empty.account))

    def make_a_token(self) -> object:
        return self.world.run(tokens.create_token, TokenCreate(role=TokenRole.TENANT, subject=self.empty.name))

    def cut_the_empty_project(self) -> object:
        return self._patch_quota(self.empty.name, 7)

    def _patch_quota(self, tenant: str, share_permille: int) -> object:
        return self.world.run(quotas.patch_quota, tenant, QuotaPatch(share_permille=share_permille), if_match=FURNISHED)

    def _fence(self, name: str) -> object:
        return self.world.run(fencing.fence_host, name, HostFence(confirm=name, force=True), if_match=ENROLLED)

    def _as(self, agent: Agent, service: Any, *arguments: Any) -> object:
        actor = agent.actor
        return self.world.database.run(lambda session: service(session, actor, agent.name, *arguments))


S = Scene
# These pairs run in `make test`; the others repeat the idea with other requests.
FIRST = [
    (S.claim, S.fulfil),
    (S.claim_for_the_empty_project, S.delete_the_empty_project_and_its_account),
    (S.delete, S.bind),
    (S.report_from_the_bare_host, S.delete_the_bare_host),
    (S.claim, S.fence),
    (S.fence_the_bare_host, S.claim_on_the_bare_host),
]
OTHERS = [
    *((S.claim, other) for other in (S.cut_the_project, S.cut_the_account, S.report_a_smaller_gpu, S.delete)),
    (S.claim_for_the_empty_project, S.delete_the_unused_profile),
    (S.claim_for_the_empty_project, S.report_from_the_bare_host),
    (S.claim_on_the_bare_host, S.delete_the_bare_host),
    (S.claim_on_the_bare_host, S.cordon_the_bare_host),
    (S.claim_on_the_bare_host, S.report_from_the_bare_host),
    *((S.try_a_claim, other) for other in (S.cut_the_project, S.fulfil, S.claim)),
    *((S.delete, other) for other in (S.delete, S.report_everything, S.cut_the_account, S.fulfil)),
    *((S.bind, other) for other in (S.delete, S.report_everything, S.read_desired)),
    *((S.fulfil, other) for other in (S.fulfil, S.claim, S.delete, S.bind, S.cut_the_account)),
    *((S.report_everything, other) for other in (S.delete, S.fulfil, S.report_a_smaller_gpu, S.cut_the_project)),
    (S.report_from_the_bare_host, S.enrol_the_bare_host_again),
    (S.enrol_the_bare_host_again, S.delete_the_bare_host),
    (S.enrol_the_bare_host_again, S.report_from_the_bare_host),
    (S.delete_the_bare_host, S.claim_on_the_bare_host),
    (S.delete_the_bare_host, S.report_from_the_bare_host),
    *((S.fence, other) for other in (S.fulfil, S.bind, S.claim, S.delete, S.report_everything, S.cut_the_account)),
    *((other, S.fence) for other in (S.fulfil, S.bind, S.delete, S.report_everything, S.cut_the_account)),
    (S.claim_on_the_bare_host, S.fence_the_bare_host),
    (S.draw_on_the_bare_host, S.fence_the_bare_host),
    (S.fence_the_bare_host, S.draw_on_the_bare_host),
    (S.draw_on_the_bare_host, S.draw_on_the_bare_host),
    (S.fence_the_bare_host, S.enrol_the_bare_host_again),
    (S.enrol_the_bare_host_again, S.fence_the_bare_host),
    (S.make_a_project, S.delete_the_empty_project_and_its_account),
    (S.make_a_token, S.delete_the_empty_project_and_its_account),
    (S.cut_the_empty_project, S.delete_the_empty_project_and_its_account),
    (S.delete_the_empty_project_and_its_account, S.make_a_project),
    (S.delete_the_empty_project_and_its_account, S.make_a_token),
    (S.delete_the_empty_project_and_its_account, S.claim_for_the_empty_project),
    (S.delete_the_unused_profile, S.claim_for_the_empty_project),
]
EXCLUSIVE = [
    (S.bind, S.bind),
    (S.cut_the_empty_project, S.cut_the_empty_project),
    (S.cordon_the_bare_host, S.delete_the_bare_host),
    (S.delete_the_bare_host, S.cordon_the_bare_host),
    (S.fence_the_bare_host, S.delete_the_bare_host),
    pytest.param(S.fence, S.fence, marks=pytest.mark.long),
    pytest.param(S.delete_the_bare_host, S.fence_the_bare_host, marks=pytest.mark.long),
]
"""In each of these pairs, one of the two acts is refused."""


def name(act: Callable[[Scene], object]) -> str:
    return act.__name__


@pytest.mark.parametrize("engine_name", ["postgresql"])
@pytest.mark.parametrize(
    ("one", "other"), FIRST + [pytest.param(*pair, marks=pytest.mark.long) for pair in OTHERS], ids=name
)
def test_another_transaction_at_every_statement(
    world: World,
    database: Database,
    url: str,
    one: Callable[[Scene], object],
    other: Callable[[Scene], object],
) -> None:
    assert len(_all_interleavings(world, database, one, other)) >= 3
    assert Audit(url).violations(quotas_may_be_cut=True) == []


@pytest.mark.parametrize("engine_name", ["postgresql"])
@pytest.mark.parametrize(("one", "other"), EXCLUSIVE, ids=name)
def test_one_of_two_is_refused_at_every_statement(
    world: World,
    database: Database,
    url: str,
    one: Callable[[Scene], object],
    other: Callable[[Scene], object],
) -> None:
    granted = _all_interleavings(world, database, one, other)
    assert granted == [1] * len(granted)
    assert len(granted) >= 3


@pytest.mark.parametrize("engine_name", ["postgresql"])
@pytest.mark.parametrize("other", [S.claim, S.delete, S.fulfil], ids=name)
def test_desired_state_is_of_one_moment_whatever_comes_between(
    world: World, database: Database, other: Callable[[Scene], object]
) -> None:
    for at in range(1, STATEMENTS_MAX):
        scene = Scene(world)
        scene.prepare(S.read_desired, other)
        before = scene.agent.desired()
        if _interleaved(scene, database, S.read_desired, other, at=at) is None:
            assert at > 3
            return
        assert scene.read[0] in (before, scene.agent.desired()), f"before statement {at}"


def _all_interleavings(
    world: World, database: Database, one: Callable[[Scene], object], other: Callable[[Scene], object]
) -> list[int]:
    """Returns how many of the two were granted, for each statement of `one` before which `other` ran."""
    granted: list[int] = []
    while len(granted) < STATEMENTS_MAX:
        scene = Scene(world)
        scene.prepare(one, other)
        outcome = _interleaved(scene, database, one, other, at=len(granted) + 1)
        if outcome is None:
            return granted
        granted.append(outcome)
    raise AssertionError(f"more than {STATEMENTS_MAX} statements")


def _interleaved(
    scene: Scene, database: Database, one: Callable[[Scene], object], other: Callable[[Scene], object], *, at: int
) -> int | None:
    """Runs `other` before statement number `at` of `one`; returns None if `one` has fewer statements."""
    outcomes: list[BaseException | None] = []
    second = threading.Thread(target=_tried, args=(other, scene, outcomes))
    ours, number = threading.get_ident(), 0

    def before(*_: object) -> None:
        nonlocal number
        if threading.get_ident() == ours:
            number += 1
            if number == at:
                second.start()
                second.join(PATIENCE_S)

    event.listen(database.engine, "before_cursor_execute", before)
    try:
        _tried(one, scene, outcomes)
    finally:
        event.remove(database.engine, "before_cursor_execute", before)
    if second.ident is None:
        assert outcomes == [None]
        return None
    second.join(30)
    assert not second.is_alive()
    unexpected = [error for error in outcomes if error is not None and not isinstance(error, Refusal)]
    assert unexpected == [], f"before statement {at}"
    return outcomes.count(None)


def _tried(act: Callable[[Scene], object], scene: Scene, outcomes: list[BaseException | None]) -> None:
    try:
        act(scene)
    except BaseException as error:
        outcomes.append(error)
    else:
        outcomes.append(None)
