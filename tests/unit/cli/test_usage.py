# SPDX-License-Identifier: Apache-2.0
"""`usage`: the queries to the ledger, and figures without floating point errors."""

import json

import httpx2
import pytest

from tests.unit.cli.conftest import Cli
from tests.unit.cli.fake_content import ledger_of
from vgpumgr.errors import ApiUnreachableError


def asked(cli: Cli) -> dict[str, str]:
    return dict(cli.api.requests[0].url.params)


def test_times_ago_are_counted_from_the_beginning_of_this_hour(cli: Cli) -> None:
    assert cli("usage").status == 0
    assert asked(cli).items() >= {"since": "2026-11-20T12:00:00Z", "until": "2026-11-21T12:00:00Z"}.items()


def test_every_option_goes_along(cli: Cli) -> None:
    options = "--since 2026-11-01T02:00:00+02:00 --until 1h --granularity hour --by gpu --tenant blue --account acme"
    assert cli("usage", *options.split(), "--as-of", "90m").status == 0
    assert (
        asked(cli).items()
        >= {
            "since": "2026-11-01T00:00:00Z",
            "until": "2026-11-21T11:00:00Z",
            "as_of": "2026-11-21T10:00:00Z",
            "granularity": "hour",
            "by": "gpu",
            "tenant": "blue",
            "account": "acme",
        }.items()
    )


def test_sums_beyond_64_bits_and_corrections_are_shown_as_they_are(cli: Cli) -> None:
    cli.api.booked = [
        ledger_of("blue", mem_byte_us=10**24, run_ns=-1_500_000, correction=True, tenant_id=None),
        ledger_of("", host="gpu-a", gpu="0000:00:10.0", run_ns=10**18 + 1_000_000),
    ]
    first, second = cli("usage", "--by", "gpu").out.splitlines()[1:]
    assert "258700.715" in first.split()
    assert first.split()[-2:] == ["-0.002", "correction"]
    assert second.split()[-2:] == ["1000000000.001", "-"]
    assert "gpu-a  0000:00:10.0" in second
    assert json.loads(cli("usage", "-o", "json").out)[0]["mem_byte_us"] == 10**24


def test_an_empty_ledger_says_how_the_present_hour_is_seen(cli: Cli) -> None:
    cli.api.booked = []
    result = cli("usage")
    assert result.status == 0
    assert result.err == (
        "nothing before 2026-11-21T12:00:00Z;"
        " `--until 2026-11-21T13:00:00Z` shows the present hour with the data known so far\n"
    )
    assert cli("usage", "-o", "json").err == ""


def test_csv_is_what_the_api_exports(cli: Cli) -> None:
    result = cli("usage", "-o", "csv", "--tenant", "blue")
    header, row = result.out.splitlines()
    assert "\r" not in result.out
    assert dict(zip(header.split(","), row.split(","), strict=True))["run_ns"] == "20000000001"
    assert cli.api.seen()[0].startswith("GET /v1/usage/ledger.csv?")


def test_what_is_not_booked_is_asked_for_by_host_and_reason(cli: Cli) -> None:
    options = "--since 7d --until 1h --host gpu-a --tenant gone --reason implausible"
    assert cli("unbooked", *options.split()).status == 0
    assert asked(cli) == {
        "page_size": "1000",
        "since": "2026-11-14T12:00:00Z",
        "until": "2026-11-21T11:00:00Z",
        "host": "gpu-a",
        "tenant": "gone",
        "reason": "implausible",
    }


@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_an_api_that_is_gone_is_no_empty_ledger(cli: Cli, output: str) -> None:
    cli.api.fail(httpx2.ConnectError, times=9)
    result = cli("usage", "-o", output)
    assert (result.status, result.out) == (7, "")
    assert ApiUnreachableError.code in result.err
