# SPDX-License-Identifier: Apache-2.0
"""The command keeps waiting while the API restarts, but not longer than its limit."""

import httpx2
import pytest

from tests.unit.cli.conftest import Cli
from tests.unit.cli.fake_content import OPERATIONS, SLICES
from vgpumgr.wire.problem import Code

ATTEMPTS = 4
"""The attempts of one request that reaches no server."""

DRAIN = ("host", "drain", "gpu-a", "--wait", "100")
WAITING = {
    "drain": (DRAIN, 2),
    "delete": (("delete", "slice", str(SLICES[0]), "--wait", "100"), 1),
    "operation": (("operation", "wait", str(OPERATIONS[0])), 1),
}
"""A command, and the number of requests it sends before the API goes away."""


def away_after(cli: Cli, requests: int, *, times: int) -> None:
    cli.api.answers = [cli.api.route] * requests
    cli.api.fail(httpx2.ConnectError, "Connection refused", times=times)


@pytest.mark.parametrize(("command", "requests"), WAITING.values(), ids=WAITING)
def test_an_api_that_starts_again_is_waited_for_and_that_is_told_once(
    cli: Cli, command: tuple[str, ...], requests: int
) -> None:
    away_after(cli, requests, times=3 * ATTEMPTS)
    cli.api.refuse(Code.API_STOPPING, "this process is stopping; send the request to another one", times=ATTEMPTS)
    result = cli(*command)
    assert result.status == 0, result.err
    assert result.err.count("still waiting") == 1
    assert "api.unreachable: http://127.0.0.1:8470: Connection refused" in result.err


@pytest.mark.parametrize(("command", "requests"), WAITING.values(), ids=WAITING)
def test_one_that_stays_away_is_waited_for_until_the_time_is_up(
    cli: Cli, command: tuple[str, ...], requests: int
) -> None:
    away_after(cli, requests, times=100_000)
    result = cli(*command)
    assert result.status == 7
    assert sum(cli.slept_s) == pytest.approx(3600 if command[0] == "operation" else 100, abs=5)


def test_one_that_never_answered_may_be_the_wrong_one(cli: Cli) -> None:
    away_after(cli, 0, times=100_000)
    assert cli(*WAITING["operation"][0]).status == 7
    assert sum(cli.slept_s) < 5


def test_a_refusal_ends_the_waiting(cli: Cli) -> None:
    cli.api.answers = [cli.api.route] * 2
    cli.api.refuse(Code.AUTH_INVALID, "this token was revoked")
    assert cli(*DRAIN).status == 5
