# SPDX-License-Identifier: Apache-2.0
"""The table at the end of a run, the slowest tests, and what to look at in failed lanes."""

import shlex
from collections.abc import Sequence

from tests.runner.streams import Outcome

SLOW_COMMANDS = 8
SLOW_COMMAND_S = 20
SLOW_TESTS = 10
WIDTH = 120


def summary(outcomes: Sequence[Outcome]) -> str:
    """Returns the whole summary. If the lab repeated a command, a column shows how often."""
    name = max(len(o.lane) for o in outcomes)
    result = max(len(o.result) for o in outcomes)
    unsteady = any(o.unsteady for o in outcomes)
    head = f"{'lane':{name}}  {'result':{result}}  seconds"
    lines = ["", head + ("  unsteady" if unsteady else "")]
    for o in outcomes:
        count = f"  {len(o.unsteady):8}" if unsteady else ""
        lines.append(f"{o.lane:{name}}  {o.result:{result}}  {o.seconds:7.1f}{count}  {o.closing}".rstrip())
    lines += ["logs: build/logs/LANE.log", *_slow_commands(outcomes), *_slow_tests(outcomes)]
    lines += [f"{o.lane}: unsteady: {reason}" for o in outcomes for reason in o.unsteady]
    lines += [f"{o.lane}: {remark}" for o in outcomes if o.failed for remark in o.remarks]
    return "\n".join(lines)


def _slow_commands(outcomes: Sequence[Outcome]) -> list[str]:
    commands = sorted((ran for o in outcomes for ran in o.commands), key=lambda ran: -ran.seconds)
    slow = [
        f"{ran.seconds:7.1f}  {_shortened(f'{ran.lane} {ran.number}: {shlex.join(ran.command)}')}"
        for ran in commands[:SLOW_COMMANDS]
        if ran.seconds > SLOW_COMMAND_S
    ]
    return ["slowest commands, seconds:", *slow] if slow else []


def _slow_tests(outcomes: Sequence[Outcome]) -> list[str]:
    tests = sorted(((test, o.lane) for o in outcomes for test in o.slow_tests), key=lambda pair: -pair[0].seconds)
    slow = [
        f"{test.seconds:7.1f}  {lane}: {test.test}{'' if test.phase == 'call' else f' ({test.phase})'}"
        for test, lane in tests[:SLOW_TESTS]
    ]
    return ["slowest tests, seconds:", *slow] if slow else []


def _shortened(text: str) -> str:
    """Removes the middle of a long text, because the name of what a command runs is at its end."""
    half = (WIDTH - 5) // 2
    return text if len(text) <= WIDTH else f"{text[:half]} ... {text[-half:]}"
