# SPDX-License-Identifier: Apache-2.0
"""Labels that one command sets and removes: contradictions, and the maximum number."""

import json

import pytest

from tests.unit.cli.conftest import Cli
from tests.unit.cli.fake_content import GPU

SET = ("set host gpu-a", f"set gpu gpu-a/{GPU}")
LABELLING = (*SET, "host drain gpu-a")
SELECTING = (
    "create slice --tenant blue --profile quarter",
    "explain --tenant blue --profile quarter",
    "create reservation --tenant blue --profile quarter --places 2 --expires-in 2h",
    "get hosts",
)


def options(option: str, count: int, *, value: str = "") -> list[str]:
    return [word for number in range(count) for word in (option, f"key-{number}{value}")]


@pytest.mark.parametrize("command", LABELLING)
def test_a_key_that_is_set_and_taken_away_is_refused(cli: Cli, command: str) -> None:
    result = cli(*command.split(), "--label", "zone=a", "--label", "rack=7", "--unlabel", "rack")
    assert (result.status, result.out, cli.api.requests) == (2, "", [])
    assert result.err == ("vgpumgr: argument.invalid: --label sets 'rack' and --unlabel removes it; give one of them\n")


@pytest.mark.parametrize(
    ("command", "option"),
    [*((command, "--label") for command in LABELLING), *((command, "--selector") for command in SELECTING)],
)
def test_a_key_that_is_given_twice_is_refused(cli: Cli, command: str, option: str) -> None:
    result = cli(*command.split(), option, "zone=a", option, "rack=7", option, "zone=b")
    assert (result.status, result.out, cli.api.requests) == (2, "", [])
    assert result.err == ("vgpumgr: argument.invalid: label 'zone=b': 'zone' is given twice; give each key once\n")


@pytest.mark.parametrize("command", LABELLING)
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (options("--label", 65, value="=v"), "--label: 65 labels, and"),
        (options("--unlabel", 65), "--unlabel: 65 labels, and"),
        ([*options("--label", 64, value="=v"), "--unlabel", "rack"], "--label and --unlabel: 65 labels, and"),
    ],
    ids=["set", "taken away", "both"],
)
def test_more_labels_than_may_be_are_refused_by_option_and_limit(
    cli: Cli, command: str, given: list[str], told: str
) -> None:
    result = cli(*command.split(), *given)
    assert (result.status, result.out, cli.api.requests) == (2, "", [])
    assert result.err == f"vgpumgr: argument.invalid: {told} a command changes at most 64\n"


@pytest.mark.parametrize("command", SET)
def test_as_many_labels_as_may_be_are_set(cli: Cli, command: str) -> None:
    result = cli(*command.split(), *options("--label", 64, value="=v"), "-o", "json")
    assert result.status == 0
    assert len(json.loads(result.out)["labels"]) == 64


def test_a_drain_labels_its_host(cli: Cli) -> None:
    assert cli("host", "drain", "gpu-a", "--label", "why=disk", "--unlabel", "rack").status == 0
    assert json.loads(cli.api.requests[-1].content)["labels"] == {"why": "disk", "rack": None}


@pytest.mark.parametrize("command", SELECTING)
def test_more_labels_than_can_be_selected_are_refused_by_option_and_limit(cli: Cli, command: str) -> None:
    result = cli(*command.split(), *options("--selector", 17, value="=v"))
    assert (result.status, result.out, cli.api.requests) == (2, "", [])
    assert result.err == "vgpumgr: argument.invalid: --selector: at most 16 labels\n"
