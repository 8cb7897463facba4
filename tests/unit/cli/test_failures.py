# SPDX-License-Identifier: Apache-2.0
"""How commands end: an exit status for each kind of failure, one line without terminal control characters, and never a
traceback.
"""

import json
from pathlib import Path

import httpx2
import pytest

from tests.unit.cli.conftest import Cli
from tests.unit.cli.fake_api import TOKEN
from tests.unit.cli.fake_content import GPU, OPERATIONS, SLICES, TOKENS, VM, operation_of, slice_of
from vgpumgr import errors
from vgpumgr.cli import failures
from vgpumgr.cli.failures import Status
from vgpumgr.wire.problem import Code, Problem, Reason

STATUSES = {
    Code.AUTH_REQUIRED: 5,
    Code.AUTH_INVALID: 5,
    Code.AUTH_EXPIRED: 5,
    Code.PERMISSION_DENIED: 5,
    Code.ROUTE_UNKNOWN: 1,
    Code.METHOD_NOT_ALLOWED: 1,
    Code.BODY_INVALID: 1,
    Code.BODY_TOO_LARGE: 1,
    Code.MEDIA_TYPE_UNSUPPORTED: 1,
    Code.FIELD_INVALID: 2,
    Code.OBJECT_UNKNOWN: 3,
    Code.OBJECT_EXISTS: 4,
    Code.OBJECT_IN_USE: 4,
    Code.GENERATION_REQUIRED: 1,
    Code.GENERATION_STALE: 4,
    Code.IDEMPOTENCY_MISMATCH: 4,
    Code.SECRET_SHOWN: 4,
    Code.QUOTA_EXCEEDED: 5,
    Code.QUOTA_FORBIDDEN: 5,
    Code.CAPACITY_NONE: 6,
    Code.HOST_FENCED: 5,
    Code.HOST_ONLINE: 4,
    Code.HOST_DRAINING: 4,
    Code.GPU_PRESENT: 4,
    Code.HOST_SECOND_BOOT: 4,
    Code.OPERATION_DONE: 4,
    Code.CA_ABSENT: 4,
    Code.RESERVATION_USED: 4,
    Code.SLICE_BOUND: 4,
    Code.SLICE_RELEASING: 4,
    Code.SLICE_MOVING: 4,
    Code.SLICE_MOVED: 4,
    Code.WATCH_EXPIRED: 4,
    Code.RATE_EXCEEDED: 7,
    Code.USAGE_EXPIRED: 3,
    Code.ISSUER_UNREACHABLE: 7,
    Code.DATABASE_BUSY: 7,
    Code.DATABASE_UNUSABLE: 7,
    Code.DATABASE_OUTDATED: 7,
    Code.API_STOPPING: 7,
    Code.API_FULL: 7,
    Code.REQUEST_TIMEOUT: 7,
    Code.INTERNAL: 1,
}
CLAIM = ("create", "slice", "--tenant", "blue", "--profile", "quarter")


def test_every_code_of_the_api_has_its_status_here() -> None:
    assert set(STATUSES) == set(Code)


@pytest.mark.parametrize("code", Code)
def test_the_exit_status_says_the_kind_of_failure(cli: Cli, code: Code) -> None:
    cli.api.refuse(code, "no; do something else", times=4)
    result = cli(*CLAIM)
    assert result.status == STATUSES[code]
    assert result.err == f"vgpumgr: {code}: no; do something else\n"
    assert result.out == ""


@pytest.mark.parametrize(
    ("http", "status"),
    [(401, 5), (403, 5), (404, 3), (408, 7), (409, 4), (412, 4), (418, 1), (429, 7), (500, 1), (503, 7)],
)
def test_a_code_of_a_newer_api_goes_by_its_http_status(http: int, status: int) -> None:
    problem = Problem(title="New", status=http, detail="new", code="wombat.shy", request_id="1")
    assert failures.status(errors.ApiError(problem)) == status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.ApiUnreachableError("x"), Status.UNREACHABLE),
        (errors.ApiAnswerError("x"), Status.ERROR),
        (errors.ArgumentError("x"), Status.USAGE),
        (errors.SettingsError("x"), Status.USAGE),
        (errors.ScenarioError("x"), Status.USAGE),
        (errors.SimulatorMissingError("x"), Status.ERROR),
        (errors.MissingError("x"), Status.NOT_FOUND),
        (errors.DomainUnknownError("x"), Status.NOT_FOUND),
        (errors.ClaimMismatchError("x"), Status.CONFLICT),
        (errors.AgentRefusedError("x"), Status.DENIED),
        (errors.AgentUnreachableError("x"), Status.ERROR),
        (errors.LibvirtFailedError("x"), Status.ERROR),
        (errors.WaitEndedError("x"), Status.ERROR),
        (errors.OperationFailedError("x"), Status.ERROR),
        (errors.OutputError("x"), Status.ERROR),
    ],
)
def test_errors_of_our_own_have_their_status(error: errors.VgpumgrError, status: Status) -> None:
    assert failures.status(error) == status


def test_an_api_that_is_not_there_is_7(cli: Cli) -> None:
    cli.api.fail(httpx2.ConnectError, "Connection refused", times=4)
    result = cli("get", "tenants")
    assert result.status == 7
    assert result.err == (
        "vgpumgr: api.unreachable: http://127.0.0.1:8470: Connection refused;"
        " check that the API runs there, the URL and the network\n"
    )


def test_a_terminal_obeys_nothing_that_comes_from_elsewhere(cli: Cli) -> None:
    cli.api.refuse(
        Code.FIELD_INVALID, "bad\x1b[2Jname\r\nvgpumgr: ok", Reason(code="x\x07", detail="\u202eevil\n", field="\x9b1m")
    )
    result = cli(*CLAIM)
    assert result.err.count("\n") == 2
    assert result.err.replace("\n", "").isprintable()
    host = cli.api.lists["hosts"][0]
    cli.api.lists["hosts"][0] = host.model_copy(update={"agent_version": "\x1b]0;owned\x07\n\u202e"})
    for command in (("get", "hosts"), ("describe", "host", "gpu-a"), ("get", "hosts", "-o", "json")):
        shown = cli(*command).out
        assert shown.replace("\n", "").isprintable()
        assert "owned" in shown
    assert len(cli("get", "hosts").out.splitlines()) == 3


def test_what_the_refusal_says_is_not_said_again_among_the_reasons(cli: Cli) -> None:
    many = [Reason(code=Code.FIELD_INVALID, detail=f"bad{n}", field=f"$.slices[{n}].tenant") for n in (0, 1)]
    cli.api.refuse(Code.FIELD_INVALID, "2 fields are not acceptable, the first is $.slices[0].tenant: bad0", *many)
    assert cli(*CLAIM).err == (
        "vgpumgr: field.invalid: 2 fields are not acceptable, the first is $.slices[0].tenant: bad0\n"
        "  field.invalid: $.slices[1].tenant: bad1\n"
    )


@pytest.mark.parametrize(
    ("command", "detail", "field", "told"),
    [
        ("get audit --action x", "query.action: no action", "query.action", "--action: no action"),
        ("set quota blue --profile x", "$.profiles[0]: no such", "$.profiles[0]", "--profile: no such"),
        ("set host gpu-a --label zone=a", "$.labels.zone: no", "$.labels.zone", "--label.zone: no"),
        ("set host gpu-a --unlabel a/b", '$.labels["a/b"]: no', '$.labels["a/b"]', '--label["a/b"]: no'),
        ("set quota blue --slices 1", "$.mem_bytes: above slices", "$.mem_bytes", "--memory: above slices"),
        (
            "create profile a --share-permille 1 --memory 1M --window 1M",
            "$.window_bytes: another size",
            "$.window_bytes",
            "--window: another size",
        ),
        (
            "create profile a --share-permille 1 --memory 1M --executor-memory 1M",
            "$.executor_memory_max_bytes: too little",
            "$.executor_memory_max_bytes",
            "--executor-memory: too little",
        ),
        ("set quota blue --slices 1", "used_slices is above", "$.used_slices", "used_slices is above"),
        ("usage", "until is not after since", "query.until", "--until is not after --since"),
        ("top --once", "until is not after since", "query.until", "until is not after since"),
        ("get hosts", "query.page_size: 0", "query.page_size", "query.page_size: 0"),
    ],
)
def test_members_are_called_as_the_options_of_the_command(
    cli: Cli, command: str, detail: str, field: str, told: str
) -> None:
    said = detail.removeprefix(f"{field}: ")
    cli.api.refuse(Code.FIELD_INVALID, detail, Reason(code=Code.FIELD_INVALID, detail=said, field=field))
    assert cli(*command.split()).err == f"vgpumgr: field.invalid: {told}\n"


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "A", "a b", "-a", "ä", "a\n", "\x1b[2J", "a" * 64, "'; drop table tenants", "$(id)"]
)
@pytest.mark.parametrize("command", [("get", "tenant"), ("delete", "host"), ("create", "tenant"), ("set", "quota")])
def test_hostile_names_are_refused_before_anything_is_sent(cli: Cli, command: tuple[str, ...], name: str) -> None:
    result = cli(*command, "--", name) if name.startswith("-") else cli(*command, name)
    assert result.status == 2
    assert result.err.startswith("vgpumgr: argument.invalid: ")
    assert result.err.count("\n") == 1
    assert result.err.rstrip("\n").isprintable()
    assert cli.api.requests == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("get",),
        ("get", "tenants", "--nonsense"),
        ("get", "tenants", "-o", "yaml"),
        ("get", "tenants", "--host", "gpu-a"),
        ("get", "gpus", "--state", "claimed"),
        ("get", "tenant", "blue", "--tenant", "blue"),
        ("get", "slices", "--vm", "x"),
        ("get", "slices", "--state", "gone"),
        ("get", "slices", "--tenant", "a/b"),
        ("get", "hosts", "--selector", "A=b"),
        ("get", "hosts", "--selector", "a=b c"),
        ("get", "operations", "--target", "a b"),
        ("operation", "list", "--target", "a b"),
        ("get", "events", "--after", "-1"),
        ("get", "event", "x"),
        ("get", "event", "99999999999999999999"),
        ("get", "slice", "x"),
        ("get", "token", "x"),
        ("describe", "tenants"),
        ("create", "wombat"),
        ("create", "profile", "half", "--share-permille", "many", "--memory", "1M"),
        ("create", "profile", "half", "--share-permille", "0", "--memory", "1M"),
        ("create", "profile", "half", "--share-permille", "5", "--memory", "0"),
        ("create", "profile", "half", "--share-permille", "5", "--memory", "1M", "--mode", "loose"),
        ("create", "slice", "--tenant", "blue", "--profile", "quarter", "--vm", "x"),
        ("create", "host", "gpu-c", "-o", "name"),
        ("create", "token", "--role", "host"),
        ("create", "token", "--role", "operator", "--tenant", "blue"),
        ("create", "token", "--role", "operator", "--expires-in", "soon"),
        ("create", "token", "--role", "operator", "--expires-in", "1s"),
        ("set", "quota", "blue", "--slices", "-1"),
        ("set", "quota", "blue", "--timeslice-us", "1"),
        ("set", "host", "gpu-a", "--state", "gone"),
        ("delete", "event", "5"),
        ("delete", "slice", "x"),
        ("delete", "token", str(TOKENS[0]), "--if-generation", "1"),
        ("delete", "host", "gpu-a", "gpu-b", "--if-generation", "1"),
        ("delete", "slice", str(SLICES[0]), "--wait", "-1"),
        ("host", "reenroll", "gpu-a", "-o", "name"),
        ("attach", "x", "--domain", "y"),
        ("attach", str(SLICES[0])),
        ("top", "--interval", "0"),
        ("top", "--host", "a b"),
    ],
    ids=" ".join,
)
def test_usage_errors_are_2_in_one_line_and_send_nothing(cli: Cli, arguments: tuple[str, ...]) -> None:
    result = cli(*arguments)
    assert result.status == 2
    assert result.out == ""
    assert result.err.startswith("vgpumgr: argument.invalid: ")
    assert result.err.count("\n") == 1
    assert cli.api.requests == []


@pytest.mark.parametrize(
    ("arguments", "todo"),
    [
        (("-o", "json", "get", "hosts"), "; it goes after the command, as in `vgpumgr get hosts -o json`"),
        (("--output", "json", "get", "hosts"), "; it goes after the command, as in `vgpumgr get hosts -o json`"),
        (("get", "slices", "--vm", "web-1"), "; give the VM's UUID; `virsh domuuid web-1` prints it"),
        (("get", "slices", "--vm", "$(reboot)"), "; give the VM's UUID; `virsh domuuid DOMAIN` prints it"),
        (
            ("--url", "https://api.example/v1", "get", "hosts"),
            "; give the URL without a path, like https://api.example",
        ),
        (
            ("get", "hosts", "--url", "https://api.example"),
            "; it goes before the command, as in `vgpumgr --url ... get hosts`",
        ),
        (
            ("host", "cordon", "gpu-a", "--token-file", "x"),
            "; it goes before the command, as in `vgpumgr --token-file ... get hosts`",
        ),
        *(
            (given, "; the settings are always in ~/.config/vgpumgr/config.toml, or below XDG_CONFIG_HOME")
            for given in (("--config", "x", "get", "hosts"), ("get", "hosts", "--config", "x"))
        ),
        (("operation", "wait", str(SLICES[0]), "--wait", "3"), "; it is called --timeout here"),
        (("delete", "slice", str(SLICES[0]), "--timeout", "3"), "; it is called --wait here"),
        (("host", "drain", "gpu-a", "--timeout", "3"), "; it is called --wait here"),
        (("get", "hosts", "--wait", "3"), "; see `vgpumgr get --help`"),
        (("host", "drain", "gpu-a", "--wait", "5m"), "; give a number of seconds, like 90"),
        (("delete", "slice", str(SLICES[0]), "--wait", "nan"), "; see `vgpumgr delete --help`"),
    ],
)
def test_frequent_mistakes_are_told_how_to_be_mended(cli: Cli, arguments: tuple[str, ...], todo: str) -> None:
    result = cli(*arguments)
    assert result.status == 2
    assert result.err.endswith(todo + "\n")
    assert cli.api.requests == []


def test_a_gpu_that_is_called_like_its_host_is_told_its_name(cli: Cli) -> None:
    result = cli("get", "gpu", "gpu-a")
    assert result.status == 3
    assert "there is no gpu 'gpu-a'; give HOST/ADDRESS; `vgpumgr get gpus` lists those" in result.err


def test_a_gpu_is_looked_for_on_its_host_only(cli: Cli) -> None:
    assert cli("get", "gpu", f"gpu-b/{GPU}").status == 0
    assert cli.api.seen() == ["GET /v1/gpus?page_size=1000&host=gpu-b"]
    missing = cli("get", "gpu", "gpu-b/0000:ff:00.0")
    assert (missing.status, "there is no gpu" in missing.err) == (3, True)
    assert cli("get", "gpu", f"../{GPU}").status == 2


def test_a_host_without_gpus_is_said(cli: Cli) -> None:
    cli.api.lists["gpus"] = []
    told = "none reported; run `vgpumgr host doctor` on the host, as root"
    assert cli("get", "gpus", "--host", "gpu-b").err == told + "\n"
    assert f"\ngpus: {told}\n" in cli("describe", "host", "gpu-b").out


def test_what_an_object_has_none_of_is_said_without_the_head_of_a_table(cli: Cli) -> None:
    cli.api.lists["slices"] = []
    for words in (("host", "gpu-a"), ("tenant", "blue")):
        assert cli("describe", *words).out.endswith("\nslices: none\n")


def test_a_rehoming_shows_how_many_claims_it_moved(cli: Cli) -> None:
    still = {"total": 0, "left": 0, "waiting_for": []}
    for moved in (2, 0):
        result = {"gpu": "gpu-a/0000:00:99.0", "gpu_id": str(VM), "moved": moved, "slices": []}
        cli.api.lists["operations"] = [
            operation_of(OPERATIONS[0], "succeeded", kind="gpu.rehome", progress=still, result=result)
        ]
        assert cli("operation", "list").out.splitlines()[1].split()[4] == f"{moved}/{moved}"


def test_an_epoch_is_unconfirmed_only_where_there_was_one(cli: Cli) -> None:
    new, enrolled = (host.model_copy(update={"epoch_confirmed": False}) for host in cli.api.lists["hosts"][:2])
    cli.api.lists["hosts"] = [
        new.model_copy(update={"enrolled": False, "agent_version": ""}),
        enrolled.model_copy(update={"enrolled": False, "agent_version": "0.1.0"}),
    ]
    assert [line.split()[4] for line in cli("get", "hosts").out.splitlines()[1:]] == ["-", "UNCONFIRMED"]
    assert cli("get", "hosts", "--unconfirmed", "-o", "name").out == f"{enrolled.name}\n"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("get", "gpu", "0000:00:10.0"), 3),  # two hosts have a GPU at that address
        (("get", "gpu", "nothing"), 3),
        (("get", "token", str(SLICES[0])), 3),
        (("get", "event", "4"), 3),
        (("get", "event", "7"), 3),
        (("delete", "tenant", "nobody"), 3),
        (("delete", "profile", "nobody"), 3),
        (("set", "host", "nobody", "--state", "ready"), 3),
        (("delete", "profile", "quarter", "--if-generation", "9"), 4),
        (("delete", "slice", str(SLICES[0]), "--if-generation", "9"), 4),
    ],
)
def test_what_is_not_found_or_stale(cli: Cli, arguments: tuple[str, ...], status: int) -> None:
    result = cli(*arguments)
    assert (result.status, result.out) == (status, "")


def test_help_without_arguments(cli: Cli) -> None:
    for command in ((), ("create",), ("host",), ("set",)):
        result = cli(*command)
        assert (result.status, result.out) == (2, "")
        assert result.err.startswith(" ".join(("Usage: vgpumgr", *command)))
        assert "\nCommands:\n  " in result.err
    assert cli("--version").out.startswith("vgpumgr ")


def test_json_errors_are_documents(cli: Cli) -> None:
    missing = cli("get", "event", "4", "-o", "json")
    assert json.loads(missing.err) == {
        "type": "about:blank",
        "title": "Failed",
        "code": "object.missing",
        "detail": "there is no event '4'; `vgpumgr get events` lists those that you may see",
        "reasons": [],
    }
    assert json.loads(cli("get", "tenant", "nobody", "-o", "json").err)["code"] == "object.unknown"


def test_waiting_for_capacity_ends(cli: Cli) -> None:
    cli.api.releasing_polls = 1000
    result = cli("delete", "slice", str(SLICES[0]), "--wait", "10")
    assert result.status == 1
    assert result.err.startswith(f"vgpumgr: wait.ended: slice {SLICES[0]} is still releasing; check that host gpu-a")
    assert sum(cli.slept_s) == pytest.approx(10)


def test_nobody_waits_for_a_host_that_is_dead(cli: Cli) -> None:
    lost = slice_of(SLICES[0], "blue", vm=VM, state="lost")
    cli.api.lists["slices"][0] = lost
    cli.api.answer(202, lost.model_dump_json())
    result = cli("delete", "slice", str(SLICES[0]), "--wait", "10")
    assert result.status == 1
    assert result.err.startswith(f"vgpumgr: wait.ended: slice {SLICES[0]} was lost with host gpu-a")
    assert cli.slept_s == []


def test_of_several_slices_those_before_a_refusal_are_told(cli: Cli) -> None:
    unknown = "12345678-0000-4000-8000-000000000000"
    result = cli("delete", "slice", str(SLICES[0]), unknown, "-o", "name")
    assert (result.status, result.out) == (3, f"{SLICES[0]}\n")


@pytest.mark.parametrize("wait", [(), ("--wait", "10")])
def test_a_slice_that_is_gone_when_its_deletion_is_repeated_is_told_as_deleted(cli: Cli, wait: tuple[str, ...]) -> None:
    cli.api.fail(httpx2.ReadError)
    cli.api.lists["slices"].pop(0)
    result = cli("delete", "slice", str(SLICES[0]), *wait)
    assert (result.status, result.out) == (0, f"slice {SLICES[0]} deleted\n")


# ---- secrets


def test_a_token_file_is_for_its_owner_only_and_the_token_nowhere_else(cli: Cli, tmp_path: Path) -> None:
    for command, secret in (
        (("create", "host", "gpu-c"), "vge_once"),
        (("host", "reenroll", "gpu-a"), "vge_once"),
        (("create", "token", "--role", "operator"), "vgt_once"),
    ):
        for output in ("table", "json", "name"):
            path = tmp_path / "token"
            result = cli(*command, "--token-file", str(path), "-o", output)
            assert result.status == 0
            assert path.read_text() == secret + "\n"
            assert path.stat().st_mode & 0o777 == 0o600
            assert secret not in result.out + result.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]


@pytest.mark.parametrize("where", ["missing/token", ".", "nul\x00"])
def test_a_token_file_that_cannot_be_made_is_said_before_anything_is_done(cli: Cli, tmp_path: Path, where: str) -> None:
    result = cli("create", "host", "gpu-c", "--token-file", f"{tmp_path}/{where}")
    assert result.status == 1
    assert "output.failed" in result.err
    assert "the API was not asked" in result.err
    assert result.err.count("\n") == 1
    assert cli.api.requests == []


def test_a_refused_host_leaves_no_file(cli: Cli, tmp_path: Path) -> None:
    assert cli("create", "host", "gpu-a", "--token-file", str(tmp_path / "token")).status == 4
    assert list(tmp_path.iterdir()) == []


def test_the_bearer_token_is_never_printed(cli: Cli) -> None:
    for arguments in (("get", "tenants"), ("get", "tenant", "nobody", "-o", "json"), CLAIM):
        result = cli(*arguments)
        assert TOKEN not in result.out + result.err


def test_a_defect_is_one_line_too(cli: Cli) -> None:
    cli.api.fail(RuntimeError, "odd\nthing")
    result = cli("get", "tenants")
    assert result.status == 1
    assert result.err == (
        "vgpumgr: internal: RuntimeError: odd\\nthing; this is a defect of vgpumgr; report it, with the command\n"
    )


def test_ctrl_c_is_130_without_words(cli: Cli) -> None:
    cli.api.fail(KeyboardInterrupt)
    result = cli("get", "tenants")
    assert (result.status, result.out, result.err) == (130, "", "")
