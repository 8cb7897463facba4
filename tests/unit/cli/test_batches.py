# SPDX-License-Identifier: Apache-2.0
"""`create slices`: claims from a file or standard input, all or none, and the messages about a bad file."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.cli.conftest import Cli
from tests.unit.cli.fake_content import VM
from vgpumgr.cli.claims import BATCH_BYTES_MAX
from vgpumgr.wire.problem import Code, Reason

CLAIM = {"tenant": "blue", "profile": "quarter"}


@pytest.mark.parametrize("body", [[CLAIM, CLAIM | {"vm_uuid": str(VM)}], {"slices": [CLAIM, CLAIM]}])
def test_a_file_of_claims_is_one_request(cli: Cli, tmp_path: Path, body: Any) -> None:
    file = tmp_path / "claims.json"
    file.write_text(json.dumps(body))
    result = cli("create", "slices", "-f", str(file), "-o", "json")
    assert result.status == 0
    assert [each["tenant"] for each in json.loads(result.out)] == ["blue", "blue"]
    assert cli.api.seen() == ["POST /v1/slices:batch"]
    sent = json.loads(cli.api.requests[0].content)["slices"]
    wanted = body if isinstance(body, list) else body["slices"]
    assert [each.items() >= given.items() for each, given in zip(sent, wanted, strict=True)] == [True, True]


def test_standard_input_may_be_tried_without_a_claim(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(json.dumps([CLAIM]).encode())))
    result = cli("create", "slices", "-f", "-", "--dry-run", "-o", "name")
    assert result.status == 0
    assert len(result.out.splitlines()) == 1
    assert result.err == "dry run: nothing was stored\n"
    assert cli.api.seen() == ["POST /v1/slices:batch?validate_only=true"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[{}", "line 1: not valid JSON"),
        ("[\n{]", "line 2: not valid JSON"),
        ("[]", "$.slices '[]': list should have at least 1 item"),
        ("7", "not a list; give a list of claims in JSON\n"),
        ('{"tenant": 1}', "not a list; give a list of claims in JSON\n"),
        (json.dumps({"slices": 7}), "$.slices '7': input should be a valid array"),
        (json.dumps([CLAIM] * 257), "at most 256 items"),
        (json.dumps([CLAIM, CLAIM | {"tenant": "Blue"}]), "$.slices[1].tenant 'Blue': not a name"),
        (json.dumps([CLAIM | {"size": 1}]), "$.slices[0].size '1': extra inputs are not permitted"),
        (json.dumps([CLAIM, CLAIM | {"selector": {"Zone": "a"}}]), "$.slices[1].selector 'Zone': not a label"),
        (json.dumps([{"tenant": "blue"}]), "$.slices[0].profile: field required\n"),
        (json.dumps([{"tenant": "blue", "profil": "quarter"}]), "$.slices[0].profil 'quarter': extra inputs"),
        (json.dumps([CLAIM]) + " " * BATCH_BYTES_MAX, "more than 1 MiB"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_what_the_api_would_refuse_is_told_before_it_is_asked(cli: Cli, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "claims.json"
    file.write_text(text)
    result = cli("create", "slices", "-f", str(file))
    assert (result.status, result.out, cli.api.seen()) == (2, "", [])
    assert result.err.startswith(f"vgpumgr: argument.invalid: {file}")
    assert said in result.err
    assert result.err.count("\n") == 1


def test_a_file_that_is_not_text_is_no_batch(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "claims").write_bytes(b"\xff\xfe\x00")
    assert cli("create", "slices", "-f", str(tmp_path / "claims")).status == 2
    assert cli("create", "slices", "-f", str(tmp_path)).status == 2


def test_a_batch_that_does_not_fit_makes_nothing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "claims").write_text(json.dumps([CLAIM, CLAIM]))
    cli.api.refuse(Code.CAPACITY_NONE, "no GPU is left for claim 2", Reason(code="share.full", detail="full", count=3))
    result = cli("create", "slices", "-f", str(tmp_path / "claims"))
    assert (result.status, result.out) == (6, "")
    assert "share.full: full (3 GPUs)" in result.err
