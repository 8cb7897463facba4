# SPDX-License-Identifier: Apache-2.0
"""The same commands against the real API on SQLite; this verifies the fake API's assumptions."""

import json
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

pytest.importorskip("vgpumgr_api.app", reason="the API's dependencies are not installed")

from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database
from vgpumgr_api.installation import installation

from tests.api.http.cloud import GPU, Cloud, Host
from tests.unit.cli.conftest import Cli, Result
from tests.unit.cli.fake_content import OPERATIONS, VM, operation_of
from vgpumgr.cli.operation import wait
from vgpumgr.cli.session import Output, Session
from vgpumgr.client import Client
from vgpumgr.errors import ApiError, OperationFailedError
from vgpumgr.wire.fleet import Bind


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    database = Database(f"sqlite:///{tmp_path / 'vgpumgr.db'}")
    schema.upgrade(database)
    database.run(installation.ensure)
    made = Cloud(database)
    with made.http:
        yield made
    database.close()


@pytest.fixture
def api_cli(cli: Cli, cloud: Cloud) -> Cli:
    """The command with the first operator's token."""
    cli.session["transport"] = cloud.http._transport
    cli.env = {"VGPUMGR_TOKEN": str(cloud.operator.token)}
    return cli


def done(result: Result) -> str:
    assert (result.status, result.err) == (0, "")
    return result.out


def test_an_operators_day(api_cli: Cli, cloud: Cloud) -> None:
    cli = api_cli
    done(cli("create", "tenant", "acme"))
    done(cli("create", "tenant", "blue", "--account", "acme"))
    done(cli("set", "quota", "acme", "--share-permille", "500", "--memory", "4G", "--slices", "9"))
    done(cli("set", "quota", "blue", "--share-permille", "500", "--memory", "4G", "--slices", "9"))
    done(cli("create", "profile", "quarter", "--share-permille", "250", "--memory", "1G"))
    claim = ("create", "slice", "--tenant", "blue", "--profile", "quarter")
    assert cli(*claim).status == 6
    host = cloud.host("gpu-a")

    assert cli(*claim, "--dry-run").status == 0
    assert done(cli("get", "slices", "-o", "name")) == ""
    bound = json.loads(done(cli(*claim, "--vm", str(VM), "-o", "json")))
    free = done(cli(*claim, "-o", "name")).strip()
    over = cli(*claim)
    assert over.status == 5
    assert over.err.startswith("vgpumgr: quota.exceeded: ")
    assert done(cli("get", "slices", "--vm", str(VM), "-o", "name")).strip() == bound["id"]
    assert cli("delete", "tenant", "blue").status == 4
    assert host.report()
    assert json.loads(done(cli("get", "gpu", f"gpu-a/{bound['gpu']}", "-o", "json")))["used_share_permille"] == 500

    # The host confirms while the command waits.
    cli.session["sleep"] = lambda _: host.report()
    assert done(cli("delete", "slice", bound["id"], free, "--wait", "60")).count(" deleted") == 2
    assert json.loads(done(cli("get", "quota", "blue", "-o", "json")))["used_slices"] == 0
    for kind in ("tenants", "quotas", "profiles", "hosts", "gpus", "slices", "tokens", "events"):
        done(cli("get", kind))
    done(cli("describe", "host", "gpu-a"))
    done(cli("top", "--once"))
    done(cli("set", "host", "gpu-a", "--state", "cordoned"))
    done(cli("host", "confirm-epoch", "gpu-a"))
    for what in (("tenant", "blue"), ("tenant", "acme"), ("profile", "quarter"), ("host", "gpu-a")):
        done(cli("delete", *what))


def test_a_slice_is_moved(api_cli: Cli, cloud: Cloud) -> None:
    cli = api_cli
    one = cloud.host("gpu-a")
    cloud.tenant("blue", share_permille=250, mem_bytes=1 << 30, slices=1)
    done(cli("create", "profile", "quarter", "--share-permille", "250", "--memory", "1G"))
    claim = ("create", "slice", "--tenant", "blue", "--profile", "quarter", "--host", "gpu-a", "--vm", str(VM))
    old = done(cli(*claim, "-o", "name")).strip()
    cloud.host("gpu-b")
    new = json.loads(done(cli("slice", "move", old, "--host", "gpu-b", "-o", "json")))
    assert (new["host"], new["moved_from"], new["state_reason"]) == ("gpu-b", old, "slice.moving")
    assert "slice.moved" in done(cli("describe", "slice", old))
    assert "slice.moving" in done(cli("describe", "slice", new["id"]))
    online = cli("slice", "move", old, "--host", "gpu-b", "--source-off", "gpu-a")
    assert (online.status, online.err[:22]) == (4, "vgpumgr: host.online: ")
    assert done(cli("slice", "abort-move", new["id"], "-o", "name")).strip() == old
    over = cli("slice", "abort-move", new["id"])
    assert (over.status, over.err[:22]) == (4, "vgpumgr: slice.moved: ")
    again = done(cli("slice", "move", old, "--host", "gpu-b", "-o", "name")).strip()
    assert one.report()
    assert cli("describe", "slice", old).status == 3
    assert json.loads(done(cli("get", "slice", again, "-o", "json")))["state_reason"] == ""
    wrong = cli("slice", "move", again, "--host", "gpu-b")
    assert (wrong.status, wrong.err[:24]) == (2, "vgpumgr: field.invalid: ")


def test_a_tenants_token_sees_its_own_and_an_unknown_one_nothing(api_cli: Cli, cloud: Cloud, tmp_path: Path) -> None:
    cli = api_cli
    done(cli("create", "tenant", "blue"))
    done(cli("create", "tenant", "green"))
    path = tmp_path / "blue.token"
    arguments = ("create", "token", "--role", "tenant", "--tenant", "blue", "--expires-in", "30d")
    assert cli(*arguments, "--token-file", str(path)).status == 0
    cli.env = {"VGPUMGR_TOKEN_FILE": str(path)}
    assert done(cli("get", "tenants", "-o", "name")) == "blue\n"
    assert cli("get", "tenant", "green").status == 3
    assert cli("create", "tenant", "red").status == 5
    cli.env = {"VGPUMGR_TOKEN": "vgpu_unknown"}
    assert cli("get", "tenants").status == 5


def test_a_tenant_goes_by_what_another_system_calls_it(api_cli: Cli) -> None:
    cli = api_cli
    done(cli("create", "tenant", "acme", "--external-id", "acme_prod"))
    assert "external_id: acme_prod" in done(cli("describe", "tenant", "acme"))
    assert done(cli("get", "tenants", "--external-id", "acme_prod", "-o", "name")) == "acme\n"
    taken = cli("create", "tenant", "blue", "--external-id", "acme_prod")
    assert taken.status == 4
    assert taken.err.startswith("vgpumgr: object.exists: 'acme_prod' is the external id of tenant acme already; ")
    done(cli("set", "tenant", "acme", "--external-id", "Projet n° 1"))
    assert done(cli("get", "tenants", "--external-id", "acme_prod", "-o", "name")) == ""
    assert done(cli("get", "tenants", "--external-id", "Projet n° 1", "-o", "name")) == "acme\n"
    done(cli("set", "tenant", "acme", "--no-external-id"))
    done(cli("create", "tenant", "blue", "--external-id", "acme_prod"))
    for wrong in ("", "a\n", "x" * 256):
        refused = cli("get", "tenants", "--external-id", wrong)
        assert (refused.status, refused.err[:39]) == (2, "vgpumgr: field.invalid: --external-id: ")


def test_refusals_are_in_the_words_of_the_command(api_cli: Cli, cloud: Cloud) -> None:
    cli = api_cli
    cloud.host("gpu-a").report()
    cloud.tenant("blue", share_permille=500, mem_bytes=1 << 32, slices=4)
    done(cli("set", "host", "gpu-a", *(f"--label=key-{number}=v" for number in range(64))))
    told = {
        "set host gpu-a --label zone=a": "field.invalid: --label: at most 64 labels; remove some\n",
        "host fence gpu-a --confirm gpu-a": "; --force fences a running host",
        "set quota blue --timeslice-us 3000 --timeslice-max-us 200": (
            "--timeslice-max-us: --timeslice-us 3000 is not within 100 to 200"
        ),
        "set quota blue --profile nope": "field.invalid: --profile: no profile 'nope'",
        "usage --since 1h --until 2h": "--until is not after --since",
        "get events --about wombat": "field.invalid: --about: ",
        "create token --role viewer --expires-in 1s": "--expires-in '1': input should be greater than or equal to 60 s",
    }
    for command, words in told.items():
        result = cli(*command.split())
        assert result.status
        assert words in result.err
        assert result.err.count("\n") == 1


def test_every_list_is_read_over_several_pages(api_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgpumgr.client.calls.PAGE_SIZE", 2)
    for number in range(5):
        done(api_cli("create", "tenant", f"t{number}"))
    assert done(api_cli("get", "tenants", "-o", "name")).split() == [f"t{number}" for number in range(5)]
    assert len(done(api_cli("get", "events", "-o", "name")).split()) >= 5


def test_the_agents_routes(api_cli: Cli, cloud: Cloud) -> None:
    host = cloud.host("gpu-a")
    cloud.tenant("blue", share_permille=500, mem_bytes=1 << 32, slices=4)
    cloud.profile("quarter", 250)
    free = done(api_cli("create", "slice", "--tenant", "blue", "--profile", "quarter", "-o", "name")).strip()
    with Client("http://127.0.0.1", host.token, transport=cloud.http._transport) as client:
        desired = client.desired("gpu-a", wait_s=1)
        assert desired is not None
        (wanted,) = desired.slices
        assert str(wanted.id) == free
        same = client.desired(host.id, epoch=desired.epoch, generation=desired.generation, wait_s=0)
        assert same is None
        assert client.bind(host.id, wanted.id, Bind(vm_uuid=VM)).vm_uuid == VM
        with pytest.raises(ApiError) as caught:
            client.bind(host.id, wanted.id, Bind(vm_uuid=wanted.id))
        assert caught.value.code == "slice.bound"


def test_a_drain_is_joined_by_the_same_command_once_more(api_cli: Cli, cloud: Cloud) -> None:
    cli = api_cli
    host, slice_id = occupied(cli, cloud)
    drain = ("host", "drain", "gpu-a", "--then", "maintenance", "--label", "why=disk")
    begun = json.loads(done(cli(*drain, "-o", "json")))
    for again in (drain, drain[:3], (*drain, "--wait", "0")):
        result = cli(*again)
        assert f"operation {begun['id']} drains gpu-a already\n" in result.err
        assert result.status == (1 if "--wait" in again else 0)
    for other in (("--then", "cordoned"), ("--deadline", "2h"), ("--label", "why=fan"), ("--unlabel", "why")):
        refused = cli("host", "drain", "gpu-a", *other)
        assert (refused.status, refused.err.count("\n")) == (4, 1)
        assert refused.err.startswith("vgpumgr: host.draining: ")
    cloud.operator.delete(f"/v1/slices/{slice_id}", status=202)
    host.report()
    waited = json.loads(done(cli(*drain, "--wait", "60", "-o", "json")))
    assert waited["state"] == "succeeded"
    assert json.loads(done(cli("get", "host", "gpu-a", "-o", "json")))["state"] == "maintenance"
    assert json.loads(done(cli(*drain, "--wait", "60", "-o", "json")))["result"]["drained"] == 0


def test_a_drain_that_ends_while_it_is_looked_for_is_refused(api_cli: Cli, cloud: Cloud) -> None:
    occupied(api_cli, cloud)
    done(api_cli("host", "drain", "gpu-a"))
    with patch("vgpumgr.client.Client.operations", return_value=iter(())):
        assert api_cli("host", "drain", "gpu-a").status == 4


def test_several_hosts_are_cordoned_and_drained_at_once(api_cli: Cli, cloud: Cloud) -> None:
    cli = api_cli
    occupied(cli, cloud)
    cloud.host("gpu-b")
    both = ("gpu-a", "gpu-b")
    for verb, state in (("cordon", "cordoned"), ("uncordon", "ready")):
        assert [host["state"] for host in json.loads(done(cli("host", verb, *both, "-o", "json")))] == [state] * 2
    begun = json.loads(done(cli("host", "drain", *both, "-o", "json")))
    assert [(each["target"], each["state"]) for each in begun] == [("gpu-a", "running"), ("gpu-b", "succeeded")]
    late = cli("host", "drain", "gpu-b", "gpu-a", "--wait", "0", "-o", "name")
    assert (late.status, late.out.count("\n")) == (1, 1)
    done(cli("operation", "cancel", begun[0]["id"]))
    done(cli("host", "maintenance", *both, "-o", "name"))


def test_what_was_done_to_the_first_hosts_is_told_when_a_later_one_is_refused(api_cli: Cli, cloud: Cloud) -> None:
    cli = api_cli
    for verb in ("cordon", "drain"):
        cloud.host(f"for-{verb}")
        result = cli("host", verb, f"for-{verb}", "gone", "never-reached", "-o", "json")
        assert result.status == 3
        assert len(json.loads(result.out.partition("\n]\n")[0] + "\n]")) == 1
        assert cli("host", verb, "gone").status == 3


@pytest.mark.parametrize("verb", ["cordon", "uncordon", "maintenance", "drain"])
def test_hosts_are_named_once_and_share_no_generation(cli: Cli, verb: str) -> None:
    for arguments in (("a", "b", "a"), ("a", "b", "--if-generation", "3"), ("a", "B!"), ()):
        assert cli("host", verb, *arguments).status == 2
    assert cli.api.seen() == []


def test_every_failed_drain_is_told_after_all_have_ended() -> None:
    late = {"code": "operation.deadline", "detail": "1 are left after 60 s"}
    failed = [operation_of(each, "failed", error=late) for each in OPERATIONS]
    with pytest.raises(OperationFailedError) as error:
        wait(Session(output=Output.NAME), failed, 5, single=False)
    assert [str(each) in str(error.value) for each in OPERATIONS] == [True, True]


def occupied(cli: Cli, cloud: Cloud) -> tuple[Host, str]:
    """Make a host gpu-a with a slice; return the host and the slice's id."""
    host = cloud.host("gpu-a")
    cloud.tenant("blue", share_permille=500, mem_bytes=1 << 32, slices=4)
    done(cli("create", "profile", "quarter", "--share-permille", "250", "--memory", "1G"))
    return host, done(cli("create", "slice", "--tenant", "blue", "--profile", "quarter", "-o", "name")).strip()


def test_claims_of_a_card_that_was_replaced_go_to_the_new_one(api_cli: Cli, cloud: Cloud) -> None:
    cli = api_cli
    host, slice_id = occupied(cli, cloud)
    other = "0000:00:99.0"
    rehome = ("host", "rehome", "gpu-a", GPU, other)
    for wrong in (rehome, (*rehome[:4], GPU), (*rehome[:2], "gpu-b", GPU, other)):
        assert cli(*wrong).status in (2, 3)
    assert host.report(gpus=(GPU, other), obey=False)
    refused = cli(*rehome)
    assert (refused.status, refused.err.count("\n")) == (4, 1)
    assert refused.err.startswith("vgpumgr: gpu.present: ")
    assert host.report(gpus=(other,), obey=False)
    assert cli(*rehome, "--if-generation", "77").status == 4
    operation = json.loads(done(cli(*rehome, "-o", "json")))
    assert (operation["kind"], operation["result"]["slices"]) == ("gpu.rehome", [slice_id])
    assert json.loads(done(cli("get", "slice", slice_id, "-o", "json")))["gpu"] == other
    shown = done(cli("operation", "list")).splitlines()[1].split()
    assert shown[1:5] == ["gpu.rehome", f"gpu-a/{GPU}", "succeeded", "1/1"]
    assert "gpu.rehome" in done(cli(*rehome))
