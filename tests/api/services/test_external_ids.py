# SPDX-License-Identifier: Apache-2.0
"""Names that other systems use for tenants: set, found, changed and removed."""

from typing import Any

import pytest
from pydantic import ValidationError
from vgpumgr_api.actors import local_operator
from vgpumgr_api.events import audit
from vgpumgr_api.events.audit import AuditFilter
from vgpumgr_api.resources.paging import PageRequest
from vgpumgr_api.tenancy import tenants

from tests.api.services.refusals import refused
from tests.api.world import World
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Tenant, TenantCreate, TenantPatch, TokenRole

ADMIN = local_operator("admin:test", TokenRole.ADMIN)
GIVEN = (
    "acme_prod",
    "team.a",
    "4F0c9d2f5e1b4a7c8d3e6f7a8b9c0d1e",
    "Équipe n° 1 / 東京",
    "a",
    "x" * 255,
    " ",
    '{"a": [1, 2]}',
)
NONE = (
    "",
    "x" * 256,
    "a\n",
    "a\0b",
    "\x1b[31m",
    "a\x7f",
    "a\x85",
    "a\u2028b",
    "\u202ea",
    "a\u200bb",
    "\ufeffa",
    "a\xad",
)


def made(world: World, name: str, external_id: str | None = None, **more: Any) -> Tenant:
    tenant: Tenant = world.run(tenants.create_tenant, TenantCreate(name=name, external_id=external_id, **more))
    return tenant


def changed(world: World, name: str, external_id: str | None) -> Tenant:
    seen = world.run(tenants.get_tenant, name).generation
    tenant: Tenant = world.run(tenants.patch_tenant, name, TenantPatch(external_id=external_id), if_match=seen)
    return tenant


def found(world: World, external_id: str, **options: Any) -> list[str]:
    page = world.run(tenants.list_tenants, PageRequest(), external_id=external_id, **options)
    return [tenant.name for tenant in page.items]


@pytest.mark.parametrize("external_id", GIVEN)
def test_a_tenant_is_found_by_what_another_system_calls_it(world: World, external_id: str) -> None:
    made(world, "other", external_id[:254].swapcase() + "-")
    tenant = made(world, "acme", external_id)
    assert (tenant.external_id, tenant.generation) == (external_id, 1)
    assert world.run(tenants.get_tenant, "acme") == tenant
    assert found(world, external_id) == ["acme"]


@pytest.mark.parametrize("wrong", NONE)
def test_what_cannot_be_read_is_no_external_id(wrong: str) -> None:
    with pytest.raises(ValidationError, match="external_id"):
        TenantPatch(external_id=wrong)
    with pytest.raises(ValidationError, match="external_id"):
        TenantCreate(name="acme", external_id=wrong)


def test_an_external_id_is_changed_and_removed_by_who_saw_the_last_state(world: World) -> None:
    made(world, "acme")
    assert changed(world, "acme", "acme_prod").external_id == "acme_prod"
    again = changed(world, "acme", "acme_prod")
    assert again.generation == 2, "nothing was changed"
    assert world.run(tenants.patch_tenant, "acme", TenantPatch(), if_match=2) == again
    for code, seen in ((Code.GENERATION_STALE, 1), (Code.GENERATION_REQUIRED, None)):
        with refused(code):
            world.run(tenants.patch_tenant, "acme", TenantPatch(external_id="x"), if_match=seen)
    assert changed(world, "acme", "acme_test").generation == 3
    assert found(world, "acme_prod") == []
    removed = changed(world, "acme", None)
    assert (removed.external_id, removed.generation) == (None, 4)
    assert found(world, "acme_test") == []
    with refused(Code.OBJECT_UNKNOWN):
        world.run(tenants.patch_tenant, "nobody", TenantPatch(external_id="x"), if_match=1)


def test_no_two_tenants_are_called_the_same(world: World) -> None:
    made(world, "acme", "acme_prod")
    made(world, "blue")
    made(world, "green")  # any number of tenants may have no external id
    calls = (lambda: made(world, "red", "acme_prod"), lambda: changed(world, "blue", "acme_prod"))
    for call in calls:
        with refused(Code.OBJECT_EXISTS) as caught:
            call()
        assert caught.refusal is not None
        assert [reason.field for reason in caught.refusal.reasons] == ["$.external_id"]
        assert "tenant acme " in caught.refusal.detail
    assert changed(world, "blue", "Acme_prod").external_id == "Acme_prod"
    changed(world, "acme", None)
    assert changed(world, "green", "acme_prod").external_id == "acme_prod"
    world.run(tenants.delete_tenant, "green", if_match=None)
    assert made(world, "red", "acme_prod").name == "red"


def test_a_tenant_reads_its_own_external_id_and_finds_no_others(world: World) -> None:
    made(world, "acme", "acme_prod")
    made(world, "web", "web_prod", account="acme")
    made(world, "rival", "rival_prod")
    acme, web = world.tenant_actor("acme"), world.tenant_actor("web")
    assert world.run(tenants.get_tenant, "acme", actor=acme).external_id == "acme_prod"
    assert found(world, "web_prod", actor=acme) == found(world, "web_prod", actor=web) == ["web"]
    assert found(world, "acme_prod", actor=web) == found(world, "rival_prod", actor=acme) == []
    with refused(Code.PERMISSION_DENIED):
        world.run(tenants.patch_tenant, "acme", TenantPatch(external_id="x"), actor=acme, if_match=1)


def test_each_change_of_an_external_id_is_written_down(world: World) -> None:
    made(world, "acme", "acme_prod")
    changed(world, "acme", "acme_test")
    changed(world, "acme", "acme_test")
    changed(world, "acme", None)
    made(world, "blue")
    told = [
        ("tenant.created", {"external_id": "acme_prod"}),
        ("tenant.changed", {"external_id": {"from": "acme_prod", "to": "acme_test"}}),
        ("tenant.changed", {"external_id": {"from": "acme_test", "to": None}}),
    ]
    assert [(event.kind, event.detail) for event in world.events(tenant="acme").items] == told
    assert [event.detail for event in world.events(tenant="blue").items] == [{}]
    entries = world.run(audit.list_audit, PageRequest(), AuditFilter(object="acme"), actor=ADMIN).items
    assert sorted((entry.generation, entry.action) for entry in entries) == [
        (1, "tenant.created"),
        (2, "tenant.changed"),
        (3, "tenant.changed"),
    ]
