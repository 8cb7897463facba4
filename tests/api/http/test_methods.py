# SPDX-License-Identifier: Apache-2.0
"""HEAD and OPTIONS work on every path: monitors use HEAD, browsers and proxies use OPTIONS."""

import pytest

from tests.api.http.cloud import Cloud
from tests.api.http.listening import listening, run


@pytest.mark.parametrize(
    "path", ["/", "/v1/health", "/v1/health/live", "/openapi.json", "/v1/tenants/acme", "/v1/none"]
)
def test_head_is_answered_as_get_but_for_the_body(cloud: Cloud, path: str) -> None:
    cloud.tenant("acme")
    said = {"Authorization": f"Bearer {cloud.operator.token}", "X-Request-Id": "same"}
    got = cloud.http.get(path, headers=said)
    head = cloud.http.head(path, headers=said)
    assert head.status_code == got.status_code
    assert head.headers == got.headers
    assert head.content == b""


def test_head_needs_the_token_that_get_needs(cloud: Cloud) -> None:
    answer = cloud.http.head("/v1/tenants")
    assert answer.status_code == 401
    assert answer.content == b""


def test_head_is_logged_and_counted_as_such(cloud: Cloud, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "vgpumgr_api.access")
    cloud.http.head("/v1/health/live")
    assert "HEAD /v1/health/live 200" in caplog.records[-1].getMessage()
    metrics = cloud.http.app.state.metrics.text().decode()  # type: ignore[attr-defined]
    assert 'vgpumgr_requests_total{method="HEAD",route="/v1/health/live",status="200"} 1.0' in metrics


def test_a_connection_goes_on_after_a_head(cloud: Cloud) -> None:
    async def talk() -> bytes:
        async with listening(cloud.http.app, idle_s=1) as server:
            head = b"HEAD /v1/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
            get = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            return await (await server.open(head + get)).heard()

    first, _, rest = run(talk()).partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 200 ")
    assert b"content-length: 15" in first
    assert rest.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/health", "GET, HEAD, OPTIONS"),
        ("/v1/tenants", "GET, HEAD, OPTIONS, POST"),
        ("/v1/hosts/h1:drain", "OPTIONS, POST"),
        ("*", "DELETE, GET, HEAD, OPTIONS, PATCH, POST"),
    ],
)
def test_options_names_the_methods_to_anybody(cloud: Cloud, path: str, allowed: str) -> None:
    async def talk() -> bytes:
        async with listening(cloud.http.app, idle_s=1) as server:
            said = f"OPTIONS {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            return await (await server.open(said.encode())).heard()

    head, _, body = run(talk()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 204 ")
    assert f"allow: {allowed}".encode() in head
    assert body == b""


def test_options_of_no_path_is_refused_as_everything_there(cloud: Cloud) -> None:
    answer = cloud.http.options("/v1/none")
    assert (answer.status_code, answer.json()["code"]) == (404, "route.unknown")
