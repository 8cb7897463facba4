# SPDX-License-Identifier: Apache-2.0
"""The pages of a list fit together."""

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from vgpumgr_api.auth import tokens
from vgpumgr_api.claims import claims, profiles
from vgpumgr_api.fleet import gpus, hosts
from vgpumgr_api.resources.paging import TOKEN_MAX, PageRequest
from vgpumgr_api.tenancy import quotas, tenants
from vgpumgr_api.usage import usage
from vgpumgr_api.usage.ledger_list import _token
from vgpumgr_api.usage.ledger_scope import LedgerFilter

from tests.api.services.refusals import refused
from tests.api.services.test_reports import group
from tests.api.world import World, gpu
from vgpumgr.wire.problem import Code
from vgpumgr.wire.usage import By, Granularity, LedgerRow

LISTS = [
    tenants.list_tenants,
    quotas.list_quotas,
    profiles.list_profiles,
    hosts.list_hosts,
    gpus.list_gpus,
    claims.list_slices,
    tokens.list_tokens,
    usage.list_usage,
]


@pytest.fixture
def fives(world: World) -> World:
    """Makes five objects of each kind."""
    inventory = [gpu(f"0000:00:1{number}.0") for number in range(5)]
    agent = world.host("one", inventory=inventory)
    for number in range(4):
        world.host(f"host-{number}", inventory=[])
    groups = []
    for number in range(5):
        world.tenant(f"tenant-{number}")
        world.tenant_actor(f"tenant-{number}")
        claimed = world.claim(f"tenant-{number}", world.profile(share=10))
        groups.append(group(claimed.tenant, claimed.gpu))
    agent.report(groups=groups)
    return world


@pytest.mark.parametrize("service", LISTS, ids=lambda service: service.__name__)
def test_pages_add_up_to_the_list(fives: World, service: Callable[..., Any]) -> None:
    whole = fives.run(service, PageRequest())
    assert len(whole.items) >= 5
    assert whole.next_page_token == ""
    for size in (1, 2, 5, len(whole.items), 5000):
        token, items = "", []
        for _ in range(20):
            page = fives.run(service, PageRequest(size=size, token=token))
            assert len(page.items) <= size
            items += page.items
            token = page.next_page_token
            if not token:
                break
        assert items == whole.items


def test_a_page_goes_on_where_the_last_ended_although_its_last_item_is_gone(world: World) -> None:
    for name in ("a", "b", "c"):
        world.tenant(name)
    page = world.run(tenants.list_tenants, PageRequest(size=2))
    world.run(tenants.delete_tenant, "b", if_match=None)
    rest = world.run(tenants.list_tenants, PageRequest(size=2, token=page.next_page_token))
    assert [tenant.name for tenant in rest.items] == ["c"]


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


ID = "00000000-0000-4000-8000-000000000000"


def test_a_token_goes_on_only_with_the_filters_that_it_was_made_for(world: World) -> None:
    for name in ("a", "b", "c"):
        world.tenant(name)
    token = world.run(tenants.list_tenants, PageRequest(size=1, bound="x")).next_page_token
    assert len(world.run(tenants.list_tenants, PageRequest(token=token, bound="x")).items) == 2
    for bound in ("", "y"):
        with refused(Code.FIELD_INVALID):
            world.run(tenants.list_tenants, PageRequest(token=token, bound=bound))


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "%",
        "ä",
        "\0",
        encoded(7),
        encoded([]),
        encoded(["slices", ""]),
        encoded(["slices", "", 7]),
        encoded(["slices", "", None]),
        encoded(["slices", "", "x"]),
        encoded(["slices", "", "\0"]),
        encoded(["slices", "", "\ud800"]),
        encoded(["slices", ID]),
        encoded(["slices", "0123456789abcdef", ID]),
        encoded(["tenants", "", "a"]),
        encoded([["slices"], "", ID]),
        encoded({"slices": 1, "x": 2}),
        base64.urlsafe_b64encode(b"[" * 100_000).decode(),
        base64.urlsafe_b64encode(b"\xff\xfe").decode(),
    ],
    ids=range(19),
)
def test_a_token_that_we_did_not_make_is_refused(world: World, token: str) -> None:
    with refused(Code.FIELD_INVALID):
        world.run(claims.list_slices, PageRequest(token=token))


def test_a_name_in_a_token_may_be_anything(world: World) -> None:
    world.tenant("acme")
    for value in ("", "\U0001f600", "zzz" * 1000, "'; --"):
        world.run(tenants.list_tenants, PageRequest(token=encoded(["tenants", "", value])))
    for value in ("\0", "\ud800"):
        with refused(Code.FIELD_INVALID):
            world.run(tenants.list_tenants, PageRequest(token=encoded(["tenants", "", value])))


def test_the_longest_token_of_the_ledger_is_taken() -> None:
    instant, longest = datetime(2026, 11, 21, 12, tzinfo=UTC), "a" * 63
    asked = {"tenant": longest, "account": longest, "as_of": instant}
    wanted = LedgerFilter(since=instant, until=instant, granularity=Granularity.TOTAL, by=By.TENANT, **asked)
    row = LedgerRow.model_construct(since=instant)
    assert len(_token(((longest, ID, longest, ID, longest, "0000:03:00.0", "1"), row), wanted)) <= TOKEN_MAX


def test_a_page_has_at_least_one_item(world: World) -> None:
    for size in (0, -1):
        with refused(Code.FIELD_INVALID):
            world.run(tenants.list_tenants, PageRequest(size=size))
