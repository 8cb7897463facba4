# SPDX-License-Identifier: Apache-2.0
"""The client: every route, repetition of requests, and its treatment of invalid answers."""

import re
import socket
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest

from tests.unit.cli.fake_api import TOKEN, FakeApi
from tests.unit.cli.fake_content import EPOCH, GPUS, MADE, OPERATIONS, SLICES, TOKENS, VM, slice_of, usage_of
from vgpumgr.client import Client
from vgpumgr.errors import (
    ApiAnswerError,
    ApiError,
    ApiUnreachableError,
    ArgumentError,
    SettingsError,
    VgpumgrError,
)
from vgpumgr.wire import fleet
from vgpumgr.wire.common import Mode
from vgpumgr.wire.operations import GpuRehome, HostDrain, OperationCancel
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import (
    HostCreate,
    HostFence,
    HostPatch,
    HostState,
    ProfileCreate,
    QuotaPatch,
    SliceCreate,
    TenantCreate,
    TenantPatch,
    TokenCreate,
    TokenRole,
)

URL = "https://api.example:8443"
REPORT = fleet.Report(
    boot_id=EPOCH,
    agent_epoch=1,
    seq=1,
    agent_version="0.1",
    desired_epoch=None,
    desired_generation=0,
    gpus=[],
    groups=[],
    slices=[],
    refusals=[],
)


class Made:
    """A client, and how long it slept."""

    def __init__(self, api: FakeApi, url: str = "http://127.0.0.1:8470") -> None:
        self.slept_s: list[float] = []
        self.client = Client(url, TOKEN, transport=api.transport, sleep=self.slept_s.append)


@pytest.fixture
def made(api: FakeApi) -> Made:
    api.usage = [[usage_of("blue")]]
    return Made(api)


@pytest.fixture
def client(made: Made) -> Client:
    return made.client


CALLS: list[tuple[str, Callable[[Client], Any]]] = [
    ("GET /", lambda c: c.versions()),
    ("GET /v1/health", lambda c: c.health()),
    ("GET /v1/tenants?page_size=1000", lambda c: next(c.tenants())),
    ("GET /v1/tenants/blue", lambda c: c.tenant("blue")),
    ("POST /v1/tenants", lambda c: c.create_tenant(TenantCreate(name="red"))),
    ("GET /v1/tenants?page_size=1000&external_id=a+%26b", lambda c: [*c.tenants(external_id="a &b")]),
    ("PATCH /v1/tenants/blue", lambda c: c.patch_tenant("blue", TenantPatch(external_id="x"), if_match=1)),
    ("DELETE /v1/tenants/blue", lambda c: c.delete_tenant("blue")),
    ("GET /v1/quotas?page_size=1000", lambda c: next(c.quotas())),
    ("GET /v1/quotas/blue", lambda c: c.quota("blue")),
    ("PATCH /v1/quotas/blue", lambda c: c.patch_quota("blue", QuotaPatch(slices=3), if_match=7)),
    ("GET /v1/profiles?page_size=1000", lambda c: next(c.profiles())),
    ("GET /v1/profiles/sliver", lambda c: c.profile("sliver")),
    (
        "POST /v1/profiles",
        lambda c: c.create_profile(ProfileCreate(name="half", share_permille=500, mem_bytes=1, mode=Mode.STRICT)),
    ),
    ("DELETE /v1/profiles/sliver", lambda c: c.delete_profile("sliver", if_match=1)),
    ("GET /v1/hosts?page_size=1000", lambda c: next(c.hosts())),
    ("GET /v1/hosts/gpu-a", lambda c: c.host("gpu-a")),
    ("POST /v1/hosts", lambda c: c.create_host(HostCreate(name="gpu-c"))),
    ("PATCH /v1/hosts/gpu-a", lambda c: c.patch_host("gpu-a", HostPatch(state=HostState.CORDONED), if_match=4)),
    ("DELETE /v1/hosts/gpu-a", lambda c: c.delete_host("gpu-a", if_match=4)),
    ("POST /v1/hosts/gpu-b:confirm-epoch", lambda c: c.confirm_epoch("gpu-b", if_match=1)),
    ("POST /v1/hosts/gpu-a:cordon", lambda c: c.cordon("gpu-a", if_match=4)),
    ("POST /v1/hosts/gpu-a:uncordon", lambda c: c.uncordon("gpu-a", if_match=4)),
    ("POST /v1/hosts/gpu-a:maintenance", lambda c: c.maintenance("gpu-a", if_match=4)),
    ("POST /v1/hosts/gpu-a:drain", lambda c: c.drain_host("gpu-a", HostDrain(), if_match=4)),
    (f"POST /v1/gpus/{GPUS[0]}:rehome", lambda c: c.rehome_gpu(GPUS[0], GpuRehome(to=GPUS[1]), if_match=1)),
    (
        "GET /v1/operations?page_size=1000&kind=host.drain&target=gpu-a&state=running",
        lambda c: next(c.operations(kind="host.drain", target="gpu-a", state="running")),
    ),
    (f"GET /v1/operations/{OPERATIONS[0]}?wait_s=20", lambda c: c.operation(OPERATIONS[0], wait_s=20)),
    (
        f"POST /v1/operations/{OPERATIONS[0]}:cancel",
        lambda c: c.cancel_operation(OPERATIONS[0], OperationCancel(undo=True)),
    ),
    ("POST /v1/hosts/gpu-a:fence", lambda c: c.fence("gpu-a", HostFence(confirm="gpu-a"), if_match=4)),
    ("POST /v1/hosts/gpu-b:reenroll", lambda c: c.reenroll("gpu-b")),
    ("GET /v1/gpus?page_size=1000&host=gpu-a", lambda c: next(c.gpus(host="gpu-a"))),
    (
        f"GET /v1/slices?page_size=1000&tenant=blue&host=gpu-a&state=claimed&vm_uuid={VM}",
        lambda c: next(c.slices(tenant="blue", host="gpu-a", vm_uuid=VM, state="claimed")),
    ),
    (f"GET /v1/slices/{SLICES[0]}", lambda c: c.slice(SLICES[0])),
    ("POST /v1/slices", lambda c: c.create_slice(SliceCreate(tenant="blue", profile="quarter"))),
    (
        "POST /v1/slices?validate_only=true",
        lambda c: c.create_slice(SliceCreate(tenant="blue", profile="quarter"), validate_only=True),
    ),
    (f"DELETE /v1/slices/{SLICES[0]}", lambda c: c.delete_slice(SLICES[0], if_match=3)),
    ("GET /v1/tokens?page_size=1000", lambda c: next(c.tokens())),
    ("POST /v1/tokens", lambda c: c.create_token(TokenCreate(role=TokenRole.OPERATOR))),
    (f"DELETE /v1/tokens/{TOKENS[0]}", lambda c: c.delete_token(TOKENS[0])),
    ("GET /v1/events?after=5&page_size=1000", lambda c: next(c.events(after=5))),
    ("GET /v1/audit?page_size=1000&actor=host%3Agpu-a", lambda c: next(c.audit(actor="host:gpu-a"))),
    ("GET /v1/usage?page_size=1000&tenant=blue&host=gpu-a", lambda c: next(c.usage(tenant="blue", host="gpu-a"))),
    ("POST /v1/enroll", lambda c: c.enroll(fleet.Enroll(agent_version="0.1", boot_id=EPOCH))),
    (
        "POST /v1/hosts/gpu-a/certificate",
        lambda c: c.renew_certificate("gpu-a", fleet.CertificateRequest(csr="x")),
    ),
    (
        f"GET /v1/hosts/gpu-a/desired?epoch={EPOCH}&generation=3&wait_s=20",
        lambda c: c.desired("gpu-a", epoch=EPOCH, generation=3, wait_s=20) or "204",
    ),
    ("POST /v1/hosts/gpu-a/report", lambda c: c.report("gpu-a", REPORT)),
    (
        f"POST /v1/hosts/{EPOCH}/slices/{SLICES[0]}:bind",
        lambda c: c.bind(EPOCH, SLICES[0], fleet.Bind(vm_uuid=VM)),
    ),
]


@pytest.mark.parametrize(("line", "call"), CALLS, ids=[line.split("?")[0] for line, _ in CALLS])
def test_every_route_is_asked_as_the_api_defines_it(
    api: FakeApi, client: Client, line: str, call: Callable[[Client], Any]
) -> None:
    call(client)
    assert api.seen() == [line]
    request = api.requests[0]
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"
    assert ("Idempotency-Key" in request.headers) == (request.method == "POST")


def test_lists_are_read_to_their_end(api: FakeApi, client: Client) -> None:
    assert [tenant.name for tenant in client.tenants()] == ["acme", "blue", "green"]
    assert [event.seq for event in client.events()] == [3, 5, 6]
    assert api.seen()[1] == "GET /v1/tenants?page_size=1000&page_token=2"
    assert api.seen()[3] == "GET /v1/events?after=5&page_size=1000"


def test_a_list_that_names_its_own_page_again_ends(api: FakeApi, client: Client) -> None:
    for _ in range(3):
        api.answer(200, '{"items": [], "next_page_token": "2"}')
    assert list(client.tenants()) == []
    assert len(api.requests) == 2


def test_events_are_read_on_behind_a_page_without_any_and_not_in_a_circle(api: FakeApi, client: Client) -> None:
    for token in ("4", "7", "7"):
        api.answer(200, f'{{"items": [], "next_page_token": "{token}"}}')
    assert list(client.events()) == []
    assert [line.partition("?")[2] for line in api.seen()] == [f"after={each}&page_size=1000" for each in (0, 4, 7)]


def test_a_patch_carries_only_what_was_given(api: FakeApi, client: Client) -> None:
    client.patch_quota("blue", QuotaPatch(slices=3), if_match=7)
    assert api.requests[0].content == b'{"slices":3}'
    assert api.requests[0].headers["If-Match"] == '"7"'


def test_a_change_may_be_based_on_the_etag_that_an_object_came_with(api: FakeApi, client: Client) -> None:
    seen = client.quota("blue")
    assert re.fullmatch(r'"[0-9]+-[0-9a-f]{16}"', seen.etag)
    changed = client.patch_quota("blue", QuotaPatch(slices=3), if_match=seen.etag)
    assert api.requests[-1].headers["If-Match"] == seen.etag != changed.etag
    assert next(client.quotas()).etag == ""


# ---- repetition

CLAIM = SliceCreate(tenant="blue", profile="quarter")


@pytest.mark.parametrize(
    "error", [httpx2.ReadError, httpx2.RemoteProtocolError, httpx2.WriteError, httpx2.ConnectError]
)
def test_a_lost_connection_is_tried_again_with_the_same_key(api: FakeApi, made: Made, error: type[Exception]) -> None:
    api.fail(error, times=2)
    assert made.client.create_slice(CLAIM).tenant == "blue"
    assert len({request.headers["Idempotency-Key"] for request in api.requests}) == 1
    assert len(api.requests) == 3
    assert made.slept_s == [0.1, 0.3]


def test_a_busy_api_is_tried_again_and_left_in_the_end(api: FakeApi, made: Made) -> None:
    api.refuse(Code.DATABASE_BUSY, "the database is busy; try again", times=9)
    with pytest.raises(ApiError) as caught:
        made.client.create_slice(CLAIM)
    assert caught.value.code == "database.busy"
    assert len(api.requests) == 4
    assert made.slept_s == [0.1, 0.3, 0.9]
    assert len({request.headers["Idempotency-Key"] for request in api.requests}) == 1


def test_two_requests_have_two_keys(api: FakeApi, client: Client) -> None:
    client.create_slice(CLAIM)
    client.create_slice(CLAIM)
    assert len({request.headers["Idempotency-Key"] for request in api.requests}) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.create_host(HostCreate(name="gpu-c")),
        lambda c: c.create_token(TokenCreate(role=TokenRole.OPERATOR)),
        lambda c: c.reenroll("gpu-a"),
        lambda c: c.enroll(fleet.Enroll(agent_version="0.1", boot_id=EPOCH)),
        lambda c: c.patch_host("gpu-a", HostPatch(state=HostState.READY), if_match=4),
    ],
)
def test_what_cannot_be_answered_twice_is_not_sent_twice(
    api: FakeApi, client: Client, call: Callable[[Client], Any]
) -> None:
    api.fail(httpx2.ReadError)
    with pytest.raises(ApiUnreachableError, match="check with `get` whether the request was carried out"):
        call(client)
    assert len(api.requests) == 1


@pytest.mark.parametrize("lost", [1, 3])
def test_a_deletion_whose_answer_was_lost_is_no_failure_for_having_been_made(
    api: FakeApi, client: Client, lost: int
) -> None:
    def delete_and_hang_up(request: httpx2.Request) -> httpx2.Response:
        api.route(request)
        raise httpx2.ReadError("gone")

    api.answers = [delete_and_hang_up]
    api.fail(httpx2.ReadError, times=lost - 1)
    client.delete_tenant("green")
    assert "green" not in [tenant.name for tenant in client.tenants()]


@pytest.mark.parametrize("state", ["releasing", "gone"])
@pytest.mark.parametrize("code", [Code.OBJECT_UNKNOWN, Code.GENERATION_STALE])
def test_a_slice_whose_deletion_was_not_answered_is_deleted(
    api: FakeApi, client: Client, code: Code, state: str
) -> None:
    """By then the slice may be gone, or the client finds another generation of it."""
    api.lists["slices"] = [] if state == "gone" else [slice_of(SLICES[0], "blue", vm=VM, state=state)]
    api.fail(httpx2.ReadError)
    api.refuse(code, "no")
    found = client.delete_slice(SLICES[0], if_match=3)
    if code is Code.OBJECT_UNKNOWN or state == "gone":
        assert found is None
    else:
        assert found is not None
        assert found.state == "releasing"


@pytest.mark.parametrize(
    ("code", "lost", "options"),
    [
        (Code.GENERATION_STALE, 1, {}),
        (Code.GENERATION_STALE, 0, {}),
        (Code.OBJECT_UNKNOWN, 0, {}),
        (Code.OBJECT_UNKNOWN, 1, {"validate_only": True}),
        (Code.PERMISSION_DENIED, 1, {}),
    ],
)
def test_a_slice_that_may_not_be_deleted_is_not(
    api: FakeApi, client: Client, code: Code, lost: int, options: dict[str, bool]
) -> None:
    """Somebody changed the slice, and nobody deleted it."""
    api.lists["slices"] = [slice_of(SLICES[0], "blue", vm=VM, state="claimed")]
    api.fail(httpx2.ReadError, times=lost)
    api.refuse(code, "no")
    with pytest.raises(ApiError) as caught:
        client.delete_slice(SLICES[0], if_match=3, **options)
    assert caught.value.code == code


def test_what_a_trial_of_a_deletion_does_not_find_is_not_there(api: FakeApi, client: Client) -> None:
    """The attempt whose answer was lost deleted nothing."""
    api.fail(httpx2.ReadError)
    with pytest.raises(ApiError) as caught:
        client.delete_tenant("nobody", validate_only=True)
    assert caught.value.code == Code.OBJECT_UNKNOWN


@pytest.mark.parametrize("code", [Code.OBJECT_IN_USE, Code.ROUTE_UNKNOWN, Code.PERMISSION_DENIED])
def test_a_deletion_that_is_refused_then_is_a_failure_all_the_same(api: FakeApi, client: Client, code: Code) -> None:
    api.fail(httpx2.ReadError)
    api.refuse(code, "no")
    with pytest.raises(ApiError) as caught:
        client.delete_tenant("green")
    assert caught.value.code == code


def test_what_was_not_there_before_anything_was_lost_is_unknown(api: FakeApi, client: Client) -> None:
    api.fail(httpx2.ConnectError)  # the request was not sent
    with pytest.raises(ApiError) as caught:
        client.delete_tenant("nobody")
    assert caught.value.code == Code.OBJECT_UNKNOWN


def test_a_timeout_is_not_tried_again(api: FakeApi, client: Client) -> None:
    api.fail(httpx2.ReadTimeout)
    with pytest.raises(ApiUnreachableError, match=r"http://127\.0\.0\.1:8470: no answer in time; check"):
        client.tenant("blue")
    assert len(api.requests) == 1


@pytest.mark.parametrize("error", [httpx2.ReadTimeout, httpx2.WriteTimeout])
def test_who_gets_no_answer_to_a_change_is_told_that_it_may_have_been_made(
    api: FakeApi, client: Client, error: type[Exception]
) -> None:
    api.fail(error, times=2)
    with pytest.raises(ApiUnreachableError, match="check with `get` whether the request was carried out"):
        client.create_slice(CLAIM)
    with pytest.raises(ApiUnreachableError) as caught:
        client.tenant("blue")
    assert "carried out" not in str(caught.value)


@pytest.mark.parametrize("error", [httpx2.ConnectTimeout, httpx2.PoolTimeout])
def test_what_was_never_sent_was_not_carried_out(api: FakeApi, client: Client, error: type[Exception]) -> None:
    api.fail(error)
    with pytest.raises(ApiUnreachableError, match="no answer in time") as caught:
        client.create_slice(CLAIM)
    assert "carried out" not in str(caught.value)


def test_a_refusal_is_not_tried_again(api: FakeApi, client: Client) -> None:
    api.refuse(Code.QUOTA_EXCEEDED, "blue may claim 0 permille more; raise its quota")
    with pytest.raises(ApiError) as caught:
        client.create_slice(CLAIM)
    assert (caught.value.code, caught.value.status) == ("quota.exceeded", 403)
    assert str(caught.value) == caught.value.detail == "blue may claim 0 permille more; raise its quota"
    assert len(api.requests) == 1


# ---- invalid answers


@pytest.mark.parametrize(
    ("status", "content", "kind", "words"),
    [
        (200, "<html>hello</html>", ApiAnswerError, "something other than a Tenant"),
        (200, '{"name": "blue"}', ApiAnswerError, "id: Field required"),
        (200, "", ApiAnswerError, "the answer is empty"),
        (204, "", ApiAnswerError, "the answer is empty"),
        (302, "", ApiAnswerError, "answered 302"),
        (404, "<html>nginx</html>", ApiAnswerError, "without a vgpumgr problem document"),
        (401, "{}", ApiAnswerError, "without a vgpumgr problem document"),
        (500, "boom", ApiAnswerError, "answered 500"),
        (502, "<html>bad gateway</html>", ApiUnreachableError, "a proxy before the API answered 502"),
        (504, "", ApiUnreachableError, "a proxy before the API answered 504"),
    ],
)
def test_an_answer_that_is_not_ours_is_said_in_words(
    api: FakeApi, client: Client, status: int, content: str, kind: type[VgpumgrError], words: str
) -> None:
    api.answer(status, content)
    with pytest.raises(kind, match=words) as caught:
        client.tenant("blue")
    assert "\n" not in str(caught.value)


def test_a_proxy_without_an_api_behind_it_is_unreachable(api: FakeApi, client: Client) -> None:
    for _ in range(4):
        api.answer(503, "<html>no backend</html>")
    with pytest.raises(ApiUnreachableError, match="check that the API runs"):
        client.tenant("blue")
    assert len(api.requests) == 4


# ---- what is never sent or shown


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a?b", "a b", "a\n", "ä", "a:b", "%2e%2e", "a" * 256, "-a"])
def test_a_name_that_cannot_be_one_is_not_sent(api: FakeApi, client: Client, name: str) -> None:
    with pytest.raises(ArgumentError):
        client.tenant(name)
    assert api.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.example",
        "ftp://api.example",
        "http://",
        "http://[::1",
        "http://a:99999",
        "http://user:secret@a",
        "https://a/?token=x",
        "https://a/v1",
        "https://a\n",
    ],
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Client(url, TOKEN)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["unix:/run/vgpumgr-api/api.sock", "unix:///run/vgpumgr-api/api.sock"])
def test_a_socket_is_told_what_it_is_for(url: str) -> None:
    with pytest.raises(SettingsError, match="is for a proxy on its machine; give the proxy's URL"):
        Client(url, TOKEN)


@pytest.mark.parametrize(
    "url", ["http://api.example", "http://10.0.0.1:8080", "http://0.0.0.0", "http://127.evil.example"]
)
def test_a_token_does_not_leave_the_machine_in_clear_text(url: str) -> None:
    with pytest.raises(SettingsError, match="would carry the token in clear text; use https"):
        Client(url, TOKEN)


@pytest.mark.parametrize("url", ["http://localhost:1", "http://127.0.0.2", "http://[::1]:8080", "https://api.example"])
def test_loopback_and_tls_are_fine(url: str) -> None:
    assert Client(url, TOKEN).url == url


@pytest.mark.parametrize("token", ["", "two words", "line\n", "umlaut-ä", "\x00"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Client(URL, token)
    assert not token or token not in str(caught.value)


def test_the_token_is_in_no_repr_and_no_error(api: FakeApi, client: Client) -> None:
    api.fail(httpx2.ReadTimeout)
    with pytest.raises(ApiUnreachableError) as caught:
        client.tenant("blue")
    assert TOKEN not in repr(client) + repr(vars(client)) + str(caught.value) + repr(caught.value)


# ---- over real sockets


def test_nobody_listening_is_unreachable() -> None:
    with pytest.raises(ApiUnreachableError, match="connection refused; check that the API runs there"):
        Client("http://127.0.0.1:1", TOKEN, pauses_s=()).tenant("blue")


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALL_PROXY", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.handle_request, daemon=True).start()
    # The server does not know any method and says so; a proxy would be unreachable.
    with pytest.raises(ApiAnswerError, match="answered 501"):
        Client(f"http://127.0.0.1:{server.server_port}", TOKEN, pauses_s=()).tenant("blue")
    server.server_close()


def test_plain_text_where_tls_is_wanted_is_a_tls_failure() -> None:
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.handle_request, daemon=True).start()
    words = r"does not speak TLS; check host and port; .* a URL that begins with http://"
    with pytest.raises(ApiUnreachableError, match=words):
        Client(f"https://127.0.0.1:{server.server_port}", TOKEN, pauses_s=(), timeout_s=5).tenant("blue")
    server.server_close()


def test_tls_where_plain_text_is_wanted_is_suggested() -> None:
    """A TLS server hangs up when it receives no handshake."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            with server.accept()[0] as connection:
                connection.recv(65536)

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(ApiUnreachableError, match="if the API there speaks TLS, give https:// instead of http://"):
            Client(f"http://127.0.0.1:{server.getsockname()[1]}", TOKEN, pauses_s=(), timeout_s=5).tenant("blue")


def test_an_unreadable_ca_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"CA file .*missing\.pem: no such file or directory"):
        Client(URL, TOKEN, ca_file=str(tmp_path / "missing.pem"))
    (tmp_path / "words.pem").write_text("no certificate")
    with pytest.raises(SettingsError, match=r"words\.pem"):
        Client(URL, TOKEN, ca_file=str(tmp_path / "words.pem"))


def test_a_certificate_that_does_not_verify_is_not_tried_again(api: FakeApi) -> None:
    def refuse(_: httpx2.Request) -> httpx2.Response:
        cause = ssl.SSLCertVerificationError(1, "certificate verify failed")
        cause.verify_message = "self-signed certificate"
        raise httpx2.ConnectError("failed") from cause

    api.answers = [refuse] * 4
    with pytest.raises(ApiUnreachableError, match="TLS failed: self-signed certificate"):
        Made(api).client.tenant("blue")
    assert len(api.requests) == 1


def test_ids_reach_the_models_as_uuids(client: Client) -> None:
    assert client.slice(SLICES[0]).vm_uuid == UUID(str(VM))
    assert client.tenant("blue").created_at == MADE


def test_a_key_that_is_given_goes_along_and_one_that_cannot_be_one_does_not(api: FakeApi, client: Client) -> None:
    claim = SliceCreate(tenant="blue", profile="quarter")
    client.create_slice(claim, idempotency_key="order-4711")
    client.create_slice(claim)
    client.create_slice(claim)
    keys = [request.headers["idempotency-key"] for request in api.requests]
    assert keys[0] == "order-4711"
    assert len(set(keys)) == 3
    for key in ("", "a b", "x" * 256, "\r\nX: y", "\u00e9"):
        with pytest.raises(ArgumentError):
            client.create_slice(claim, idempotency_key=key)
    assert len(api.requests) == 3
