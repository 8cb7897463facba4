# SPDX-License-Identifier: Apache-2.0
"""The agent's certificate: it is obtained by enrolling or for the token, renewed in time, and never a reason to
stop.
"""

import contextlib
import json
from collections.abc import Callable

import pytest
from vgpumgr_agent.api import ApiAwayError, ApiRefusedError
from vgpumgr_agent.control_plane import _RENEW_PAUSE_S
from vgpumgr_agent.store import Certificate

from tests.agent.fakeapi import FakeApi
from tests.agent.host import Host

LIFE_S = 1000
"""`renew_after_s` in the played API's answer; the agent shortens it by up to a fifth."""


@pytest.fixture
def certified(host: Host, api: FakeApi) -> Host:
    api.gives_certificates = True
    host.learn()
    return host


@pytest.fixture
def unseen(host: Host, api: FakeApi) -> Callable[[], None]:
    """A host that uses its token because the API does not see its first certificate. Call it to make the API see
    again.
    """
    api.gives_certificates = False
    host.learn()
    api.gives_certificates = True
    host.clock.go(_RENEW_PAUSE_S)
    authorised = blinded(api)
    with pytest.raises(ApiRefusedError, match=r"auth\.required"):
        host.learn()
    assert api.used == api.token

    def see() -> None:
        api._authorised = authorised  # type: ignore[method-assign]

    return see


def blinded(api: FakeApi) -> Callable[[], None]:
    """Make the API see no certificates, like behind a proxy that ends TLS; return the check that was there before."""
    authorised = api._authorised

    def blind() -> None:
        if not api.token or api.used != api.token:
            raise ApiRefusedError("auth.required", "send a token")

    api._authorised = blind  # type: ignore[method-assign]
    return authorised


def reenrolled(host: Host, api: FakeApi) -> None:
    """An operator had a new one-time token made and put it on the host."""
    api.one_time_tokens.add("second")
    host.token_file.write_text("second\n")


def had(host: Host) -> Certificate | None:
    assert host.store is not None
    assert host.store.credentials is not None
    return host.store.credentials.certificate


def test_enrolling_over_tls_gives_a_certificate_and_no_token(certified: Host, api: FakeApi) -> None:
    kept = had(certified)
    assert kept is not None
    assert certified.store is not None
    assert certified.store.credentials is not None
    assert certified.store.credentials.token is None
    assert (api.certificates, api.enrolments) == (1, 1)
    assert api.used == kept.key + "certificate 1\n"
    assert "BEGIN CERTIFICATE REQUEST" in api.requests[0]
    assert "PRIVATE KEY" not in "".join(api.requests)
    for name in ("credentials.json", "certificate.pem"):
        assert (certified.directory / "state" / name).stat().st_mode & 0o777 == 0o600


def test_it_is_renewed_with_a_new_key_when_the_api_said(certified: Host, api: FakeApi) -> None:
    first = had(certified)
    certified.clock.go(0.8 * LIFE_S - 1)
    certified.learn()
    assert api.certificates == 1
    certified.clock.go(0.2 * LIFE_S + 1)
    certified.learn()
    second = had(certified)
    assert first is not None
    assert second is not None
    assert (api.certificates, api.enrolments) == (2, 1)
    assert second.key != first.key
    assert api.used == second.key + "certificate 2\n"
    certified.learn()
    assert api.certificates == 2


def test_a_restart_goes_on_with_it_also_where_its_file_was_lost(certified: Host, api: FakeApi) -> None:
    (certified.directory / "state/certificate.pem").unlink()
    api.used = ""
    certified.restart()
    kept = had(certified)
    assert kept is not None
    assert api.used == kept.key + kept.certificate
    certified.learn()
    assert (api.certificates, api.enrolments) == (1, 1)


@pytest.mark.parametrize("back_s", [3600.0, 86400.0])
def test_a_clock_set_back_across_a_boot_renews(certified: Host, api: FakeApi, back_s: float) -> None:
    stamp = certified.clock.stamp
    certified.clock.stamp = stamp.model_copy(
        update={"boot_id": "two", "boottime_s": 1.0, "wall_s": stamp.wall_s - back_s}
    )
    certified.learn()
    assert api.certificates == 2


def test_a_renewal_that_fails_is_tried_again_later_and_holds_nothing_up(certified: Host, api: FakeApi) -> None:
    certified.clock.go(LIFE_S)
    renew, tried = api.renew, []

    def fail(*_: object) -> None:
        tried.append(1)
        raise ApiAwayError("no answer in time")

    api.renew = fail  # type: ignore[method-assign]
    asked = api.asked
    certified.learn()
    certified.learn()
    assert len(tried) == 1
    assert api.asked == asked + 2
    api.renew = renew  # type: ignore[method-assign]
    certified.clock.go(_RENEW_PAUSE_S)
    certified.learn()
    assert api.certificates == 2


def test_a_host_with_a_token_asks_for_a_certificate_and_goes_on_without_one(host: Host, api: FakeApi) -> None:
    api.gives_certificates = False
    host.learn()
    assert (api.used, api.enrolments, len(api.requests)) == (api.token, 1, 1)
    # An older release left this file.
    path = host.directory / "state/credentials.json"
    old = json.loads(path.read_text())
    del old["certificate"]
    path.write_text(json.dumps(old))
    host.restart()
    host.learn()
    assert (api.used, len(api.requests)) == (api.token, 2)
    host.learn()
    assert len(api.requests) == 2
    api.gives_certificates = True
    host.clock.go(_RENEW_PAUSE_S)
    host.learn()
    assert api.used.endswith("certificate 1\n")
    assert host.store is not None
    assert host.store.credentials is not None
    assert host.store.credentials.token == api.token, "it counts until a certificate was renewed"


def test_a_first_certificate_that_the_api_does_not_see_is_left_for_the_token(
    host: Host, api: FakeApi, unseen: Callable[[], None]
) -> None:
    """A proxy that ends TLS hides the certificate: the token stays valid until a renewal, and is then deleted."""
    host.learn()
    assert (api.used, api.certificates, had(host)) == (api.token, 1, None)
    unseen()
    for wait_s in (_RENEW_PAUSE_S, LIFE_S):
        host.clock.go(wait_s)
        host.learn()
    assert api.used.endswith("certificate 3\n")
    assert host.store is not None
    assert host.store.credentials is not None
    assert host.store.credentials.token is None


def test_what_a_host_enrols_for_while_it_tries_its_token_is_kept(
    host: Host, api: FakeApi, unseen: Callable[[], None]
) -> None:
    """The host was fenced in the meantime."""

    def fenced() -> None:
        raise ApiRefusedError("host.fenced", "declared dead")

    api._authorised = fenced  # type: ignore[method-assign]
    reenrolled(host, api)
    with pytest.raises(ApiRefusedError, match=r"host\.fenced"):
        host.learn()
    unseen()
    for _ in range(2):
        host.learn()
        assert api.used.endswith("certificate 2\n")
    assert had(host) is not None
    assert api.enrolments == 2


def test_no_certificate_is_renewed_while_the_token_is_tried(
    host: Host, api: FakeApi, unseen: Callable[[], None]
) -> None:
    """The API went away before it said whether the token is valid, and stays away until the certificate is due."""
    api.away = True
    host.clock.go(LIFE_S)
    with pytest.raises(ApiAwayError):
        host.learn()
    api.away = False
    host.clock.go(_RENEW_PAUSE_S)
    host.learn()
    assert (api.used, api.certificates, had(host)) == (api.token, 1, None)


def test_where_certificates_are_seen_no_more_a_new_one_time_token_brings_the_host_back(
    certified: Host, api: FakeApi
) -> None:
    """The authority was removed. An API that still had one would answer with a certificate again."""
    api.gives_certificates = False
    blinded(api)
    for _ in range(2):
        with pytest.raises(ApiRefusedError, match=r"auth\.required"):
            certified.learn()
    assert api.enrolments == 1, "there is no new one-time token"
    certified.token_file.unlink()
    with pytest.raises(ApiRefusedError, match=r"auth\.required"):
        certified.learn()
    reenrolled(certified, api)
    with pytest.raises(ApiRefusedError, match=r"auth\.required"):
        certified.learn()
    certified.learn()
    assert (api.used, api.enrolments, had(certified)) == (api.token, 2, None)


def test_a_certificate_outlives_an_api_that_does_not_see_it_where_the_token_is_void(host: Host, api: FakeApi) -> None:
    """The answer to a renewal was lost, and one replica of the API has no authority."""
    api.gives_certificates = False
    host.learn()
    api.gives_certificates = True
    host.clock.go(_RENEW_PAUSE_S)
    host.learn()
    assert api.used.endswith("certificate 1\n")
    authorised = api._authorised

    def refusing(code: str) -> Callable[[], None]:
        def refuse() -> None:
            raise ApiRefusedError(code, "no")

        return refuse

    for code in ("auth.required", "auth.invalid"):
        api._authorised = refusing(code)  # type: ignore[method-assign]
        with pytest.raises(ApiRefusedError, match=code):
            host.learn()
    api._authorised = authorised  # type: ignore[method-assign]
    host.learn()
    assert api.used.endswith("certificate 1\n")
    assert api.enrolments == 1


def test_without_tls_it_asks_for_none(host: Host, api: FakeApi) -> None:
    host.learn()
    host.clock.go(10 * LIFE_S)
    host.learn()
    assert (api.requests, api.used) == ([], api.token)


@pytest.mark.parametrize("code", ["auth.invalid", "auth.expired"])
def test_one_that_counts_no_longer_is_replaced_by_enrolling_again(certified: Host, api: FakeApi, code: str) -> None:
    def refuse() -> None:
        if not api.used.endswith(f"certificate {api.certificates}\n") or api.certificates == 1:
            raise ApiRefusedError(code, "have the host re-enrolled")

    api._authorised = refuse  # type: ignore[method-assign]
    with contextlib.suppress(ApiRefusedError):
        certified.learn()
    assert api.enrolments == 1, "there is no new one-time token"
    api.one_time_tokens.add("second")
    certified.token_file.write_text("second\n")
    with contextlib.suppress(ApiRefusedError):
        certified.learn()
    certified.learn()
    assert (api.enrolments, api.certificates) == (2, 2)


def test_one_of_an_authority_that_is_being_replaced_is_renewed_within_the_time_given(
    certified: Host, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.uniform", lambda low, high: (low + high) / 2)
    plane = certified.agent.control_plane
    plane.renew_soon(100)
    certified.clock.go(49)
    plane.renew_soon(100)
    certified.learn()
    assert api.certificates == 1, "not all hosts at once"
    certified.clock.go(1)
    certified.learn()
    assert api.certificates == 2, "being told again does not put it off"
    certified.clock.go(10)
    certified.learn()
    assert api.certificates == 2


def test_where_tls_refuses_it_a_new_one_time_token_brings_the_host_back(certified: Host, api: FakeApi) -> None:
    def refuse() -> None:
        if not api.used.endswith("certificate 2\n"):
            raise ApiAwayError("alert unknown ca")

    api._authorised = refuse  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(ApiAwayError):
            certified.learn()
    assert api.enrolments == 1
    api.one_time_tokens.add("second")
    certified.token_file.write_text("second\n")
    with pytest.raises(ApiAwayError):
        certified.learn()
    certified.learn()
    assert (api.enrolments, api.certificates) == (2, 2)
