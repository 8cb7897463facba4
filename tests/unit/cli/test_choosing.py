# SPDX-License-Identifier: Apache-2.0
"""The options that select what `get` lists: they are sent in the API's form and accept the API's words."""

from enum import StrEnum

import pytest

from tests.unit.cli.conftest import Cli
from vgpumgr.cli.kinds import kind_of
from vgpumgr.wire.common import Mode
from vgpumgr.wire.operations import OperationState
from vgpumgr.wire.resources import HostState, SliceState, TokenRole


@pytest.mark.parametrize(
    ("kind", "option", "words"),
    [
        ("slice", "state", SliceState),
        ("gpu", "state", HostState),
        ("operation", "state", OperationState),
        ("profile", "mode", Mode),
        ("token", "role", TokenRole),
    ],
)
def test_choices_are_the_words_of_the_api(kind: str, option: str, words: type[StrEnum]) -> None:
    assert set(kind_of(kind).choices[option]) == set(words)


def test_a_host_may_be_fenced_in_place_of_a_state_of_the_api() -> None:
    assert set(kind_of("host").choices["state"]) == {*HostState, "fenced"}


@pytest.mark.parametrize(
    ("command", "query"),
    [
        ("tenants --account acme", {"account": "acme"}),
        ("tenants --external-id team.a", {"external_id": "team.a"}),
        ("quotas --account acme", {"account": "acme"}),
        ("profiles --mode strict", {"mode": "strict"}),
        ("hosts --selector zone=a --selector rack=7", {"selector": "rack=7,zone=a"}),
        ("hosts --selector zone=a,rack=7", {"selector": "rack=7,zone=a"}),
        ("hosts --state lost", {"state": "lost", "fenced": "false"}),
        ("hosts --state fenced", {"fenced": "true"}),
        ("hosts --unconfirmed", {"epoch_confirmed": "false"}),
        ("gpus --host a --state ready --selector zone=a", {"host": "a", "host_state": "ready", "selector": "zone=a"}),
        ("slices --tenant a --state lost --profile p", {"tenant": "a", "state": "lost", "profile": "p"}),
        ("reservations --tenant a --profile p", {"tenant": "a", "profile": "p"}),
        ("operations --target a --state failed", {"target": "a", "state": "failed"}),
        ("tokens --role host --subject a", {"role": "host", "subject": "a"}),
        ("audit --request-id r-1", {"request_id": "r-1"}),
    ],
)
def test_what_is_chosen_goes_along(cli: Cli, command: str, query: dict[str, str]) -> None:
    cli("get", *command.split())
    asked = dict(cli.api.requests[0].url.params)
    asked.pop("page_size")
    assert asked == query
