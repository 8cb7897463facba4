# SPDX-License-Identifier: Apache-2.0
"""Valid request targets: a path, or the whole URL like to a proxy."""

import json
from typing import Any

import pytest
from vgpumgr_api.app import create_app
from vgpumgr_api.db.database import Database

from tests.api.http.listening import listening, run


def answered(target: str) -> tuple[int, Any]:
    """Returns status and document."""

    async def talk() -> bytes:
        async with listening(create_app(Database("sqlite:///nowhere")), idle_s=1) as server:
            said = f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            return await (await server.open(said.encode())).heard()

    head, _, body = run(talk()).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("host", ["http://api.example", "HTTPS://api.example:8470", "http://[::1]:1", "http://a:b@c"])
def test_a_whole_url_is_as_good_as_its_path(host: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "vgpumgr_api.access")
    assert answered(f"{host}/v1/health/live") == answered("/v1/health/live")
    assert answered(host) == answered("/")
    status, said = answered(f"{host}/v1/tenants%2f?x=http://y/")
    assert (status, said["code"]) == (404, "route.unknown")
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[2] for line in lines] == ["/v1/health/live"] * 2 + ["/"] * 2 + ["/v1/tenants%2f"]


@pytest.mark.parametrize("target", ["http:///v1/health/live", "//api.example/v1/health/live", "ftp://a/v1/health/live"])
def test_what_only_looks_like_one_is_no_path(target: str) -> None:
    status, said = answered(target)
    assert (status, said["code"]) == (404, "route.unknown")
