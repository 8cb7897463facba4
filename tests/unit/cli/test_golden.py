# SPDX-License-Identifier: Apache-2.0
"""The output for people and programs, word for word. The files hold commands, exit status and output."""

import shlex
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.cli.conftest import GOLDEN, Cli, transcripts
from tests.unit.cli.fake_content import GPU, MADE, OPERATIONS, RESERVATION, SLICES, TOKENS, VM, usage_of
from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.resources import Usage

Golden = Callable[[str, str], None]

KINDS = (
    *("tenants", "quotas", "profiles", "hosts", "gpus", "slices", "reservations", "operations", "tokens", "events"),
    "audit",
)
COMMANDS = [
    *(f"get {kind}" for kind in KINDS),
    *(f"get {kind} -o json" for kind in KINDS),
    *(f"get {kind} -o name" for kind in KINDS),
    "get tenant blue",
    "get tenant blue -o json",
    f"get gpu gpu-b/{GPU}",
    f"get token {TOKENS[1]}",
    "get event 5",
    "get events --after 5",
    "get events --tenant blue --about tenant",
    "get events --after 3 --watch",
    "get events --after 3 --watch -o json",
    "get event 5 --watch",
    "get hosts --watch",
    "usage",
    "usage --granularity day --by gpu --since 7d --tenant blue",
    "usage -o json --account acme",
    "usage -o csv",
    "usage --since 2026-11-20T12:30:00Z",
    "usage --since never",
    "usage --tenant Blue",
    "usage --help",
    "unbooked",
    "unbooked --since 7d --host gpu-a --reason unattributed -o json",
    "unbooked -o csv",
    "unbooked --since 2026-11-20T12:30:00Z",
    "unbooked --help",
    "get audit --since 2h --actor host:gpu-a",
    "get audit --since yesterday",
    "get audit 2",
    "get slices --tenant blue",
    f"get slices --vm {VM} -o name",
    "get slices --state releasing",
    "get gpus --host gpu-b",
    "get hosts --state cordoned -o name",
    "get hosts --state gone",
    "get slices --limit 1 -o name",
    "get slices --limit 0",
    "get hosts --selector zone",
    "get tenants --account Acme",
    "get profiles --mode strict -o name",
    "get tokens --role tenant -o name",
    "get operations --target gpu-a --state failed -o name",
    "get slices --selector zone=a",
    "describe tenant blue",
    "describe tenant blue -o json",
    "describe quota blue",
    "describe profile sliver",
    "describe host gpu-a",
    f"describe gpu gpu-a/{GPU}",
    f"describe slice {SLICES[0]}",
    f"describe slice {SLICES[1]}",
    f"describe token {TOKENS[0]}",
    "describe event 6",
    "create tenant red",
    "create tenant red --account acme -o json",
    "create tenant red -o name",
    "create tenant red --external-id red_prod",
    "create tenant red --external-id ''",
    "set tenant blue --external-id team.a -o json",
    "set tenant blue --no-external-id",
    "set tenant blue --external-id team.a --no-external-id",
    "set tenant blue --external-id team.a --if-generation 6",
    "set tenant blue",
    "get tenants --external-id acme_blue",
    "create profile half --share-permille 500 --memory 64MiB --mode strict",
    "create profile quick --share-permille 250 --memory 64MiB --band latency --reserve-period-us 5000 -o json",
    "create profile equal --share-permille 250 --memory 64MiB --policy equal_share -o json",
    "create profile quick --share-permille 250 --memory 64MiB --band fast",
    (
        "create profile lean --share-permille 250 --memory 64M --window 64M --executor-memory 2G"
        " --executor-tasks-max 200 --executor-cpu-max-permille 1500 -o json"
    ),
    "create profile lean --share-permille 250 --memory 64MiB --executor-tasks-max=-1",
    "set quota blue --band fair -o json",
    "create slice --tenant blue --profile quarter",
    f"create slice --tenant blue --profile quarter --vm {VM} --host gpu-a --dry-run",
    "create slice --tenant blue --profile quarter -o json",
    "create slice --tenant blue --profile quarter --workload process",
    "create slice --tenant blue --profile quarter --workload container",
    "create slice --tenant blue --profile quarter --placement spread --selector zone=a --affinity db --reservation x",
    f"create slice --tenant blue --profile quarter --selector zone=a --anti-affinity db:gpu --reservation {VM}",
    "create slice --tenant blue --profile quarter --selector zone",
    "create slice --tenant blue --profile quarter --affinity db:rack",
    "explain --tenant blue --profile quarter --selector zone=a",
    "explain --tenant blue --profile quarter --host gpu-b",
    "explain --tenant blue --profile quarter --host gpu-b -o json",
    "explain --tenant blue --profile quarter --affinity db:rack",
    "explain --help",
    "create slices --file nowhere.json",
    "create reservation --tenant blue --profile quarter --places 2 --expires-in 2h --selector zone=a",
    "create reservation --tenant blue --profile quarter --places 2 --expires-in 2h --anti-affinity db:rack",
    "create reservation --tenant blue --profile quarter --places 0 --expires-in 2h",
    f"delete reservation {RESERVATION}",
    "delete reservation x",
    f"describe reservation {RESERVATION}",
    "create host gpu-c",
    "create host gpu-c -o json",
    "create token --role operator",
    "create token --role tenant --tenant blue --expires-in 30d -o json",
    "create token --role viewer --expires-in 30d --scope slices:read --scope usage:read",
    "create token --role viewer --scope slices",
    "set quota blue --share-permille 250 --memory 2G --slices 3 --timeslice-us 1500",
    "set quota blue --slices 3 -o json",
    "set quota blue --profile quarter --mode fair --timeslice-max-us 9000 -o json",
    "set quota blue --any-profile --mode any -o json",
    "set quota blue --any-profile --profile quarter",
    "set host gpu-a --state cordoned",
    "set host gpu-a --label zone=a --label rack=7 -o json",
    "set host gpu-a",
    f"set gpu gpu-a/{GPU} --label zone=a --fair-ratio-permille 2000 -o json",
    f"set gpu gpu-a/{GPU} --unlabel zone",
    "set host gpu-a --label 'bad key=a b'",
    "set host gpu-a --label zone=a --unlabel 'bad key'",
    f"set gpu gpu-a/{GPU} --fair-ratio-permille 999",
    "delete tenant green",
    "delete profile sliver -o json",
    "delete host gpu-b -o name",
    f"delete token {TOKENS[1]}",
    f"delete slice {SLICES[0]}",
    f"delete slice {SLICES[0]} --wait 60",
    f"delete slice {SLICES[0]} {SLICES[1]} -o name",
    "host confirm-epoch gpu-b",
    "host confirm-epoch gpu-b --if-generation 9",
    "host reenroll gpu-b",
    "host cordon gpu-a",
    "host uncordon gpu-a --if-generation 3",
    "host maintenance gpu-a -o json",
    "host drain gpu-a",
    "host drain gpu-a --deadline 2h --then maintenance --wait 100",
    "host drain gpu-a --deadline soon",
    "host cordon gpu-a gpu-b",
    "host drain --help",
    "host rehome --help",
    "operation list",
    "operation list --state failed -o json",
    f"operation show {OPERATIONS[0]}",
    f"operation show {OPERATIONS[1]} -o json",
    f"operation wait {OPERATIONS[0]}",
    f"operation wait {OPERATIONS[0]} --timeout 0",
    f"operation wait {OPERATIONS[1]}",
    f"operation cancel {OPERATIONS[0]} --undo",
    "operation show gpu-a",
    "operation --help",
    f"describe operation {OPERATIONS[0]}",
    "host fence gpu-a --confirm gpu-a",
    "host fence gpu-a --confirm gpu-a --force -o json",
    "host fence gpu-a --confirm gpu-b",
    "host fence gpu-a --confirm gpu-a --if-generation 3",
    "get tenant nobody",
    "get tenant nobody -o json",
    "get wombats",
    "get tenants 'a/../b'",
    "create tenant blue",
    "create profile half --share-permille 1001 --memory 1M",
    "create profile half --share-permille 500 --memory 64MB",
    "create token --role tenant",
    "create token --role operator --tenant blue",
    "set quota blue",
    "set quota blue --slices 3 --if-generation 6",
    "delete tenant green --wait 5",
    "create profile half",
    "--help",
    "get --help",
    "create slice --help",
    "delete --help",
    "attach --help",
    "top --help",
    "top --broker --host gpu-a",
    "top --run-directory nowhere",
    "broker --help",
    "broker run --help",
    "broker run nowhere.toml",
    "broker apply --help",
    "broker show --run-directory nowhere",
    "broker stop --run-directory nowhere",
    "run --help",
    "run --tenant blue --run-directory nowhere -- true",
    "run --tenant 'a/../b' --run-directory nowhere -- true",
    "run --tenant blue",
    "host doctor --help",
    "host fence --help",
]


def file_name(command: str) -> str:
    """Return the file of the command's verb; help and the JSON output of `get` have separate files."""
    words = command.split()
    if "--help" in words:
        return "help.txt"
    return "get-json.txt" if words[0] == "get" and command.endswith("-o json") else f"{words[0]}.txt"


def shown(cli: Cli, command: str) -> str:
    result = cli(*shlex.split(command))
    parts = [f"$ vgpumgr {command}", f"exit status {result.status}"]
    parts += [f"--- stdout\n{result.out}".rstrip("\n")] * bool(result.out)
    parts += [f"--- stderr\n{result.err}".rstrip("\n")] * bool(result.err)
    return "\n".join(parts) + "\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_what_its_golden_file_says(
    cli: Cli, golden: Golden, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    golden(file_name(command), shown(cli, command))


def test_every_transcript_belongs_to_a_test() -> None:
    own = {"refusals.txt", "top-twice.txt"}
    assert {path.name for path in GOLDEN.iterdir()} == {file_name(command) for command in COMMANDS} | own
    kept = [command for path in GOLDEN.iterdir() if path.name not in own for command in transcripts(path)]
    assert sorted(kept) == sorted(f"$ vgpumgr {command}" for command in COMMANDS)


@pytest.mark.parametrize("option", ["", " -o json"])
def test_reasons_follow_the_refusal(cli: Cli, golden: Golden, option: str) -> None:
    cli.api.refuse(
        Code.CAPACITY_NONE,
        "no GPU has 250 permille and 64 MiB free; free some, add a host or ask for less",
        Reason(code="host.cordoned", detail="their host is cordoned", count=1),
        Reason(code="share.full", detail="too little share is free", count=3),
        Reason(code="type", detail="a reason of a newer API", field="profile"),
    )
    golden("refusals.txt", shown(cli, "create slice --tenant blue --profile quarter" + option))


def test_a_reason_that_says_what_the_refusal_does_is_not_said_twice(cli: Cli, golden: Golden) -> None:
    detail = "no profile 'nope', or none that this token may see"
    cli.api.refuse(Code.OBJECT_UNKNOWN, detail, Reason(code=Code.OBJECT_UNKNOWN, detail=detail, field="$.profile"))
    golden("refusals.txt", shown(cli, "create slice --tenant blue --profile nope"))


@pytest.mark.parametrize("option", ["", " -o json"])
def test_top_shows_entitled_and_obtained_shares(cli: Cli, golden: Golden, option: str) -> None:
    def sample(seconds: int) -> list[Usage]:
        common: dict[str, Any] = {"wall_ns": seconds * 10**9, "reported_at": MADE + timedelta(seconds=seconds)}
        return [
            usage_of(
                "blue",
                weight=300,
                run_ns=seconds * 740_000_000,
                runs=seconds * 370,
                switches=seconds * 12,
                **common,
            ),
            usage_of("green", run_ns=seconds * 250_000_000, runs=seconds * 50, timeslice_us=5000, **common),
            usage_of("idle", weight=600, **common),
        ]

    cli.api.usage = [sample(10), sample(10), sample(20)]
    golden("top-twice.txt", shown(cli, "top --once --interval 2" + option))
    assert cli.slept_s == [2, 2]
