# SPDX-License-Identifier: Apache-2.0
"""Users who log in at an OIDC issuer: a separate TLS server, real keys, and the API that fetches them."""

import base64
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from vgpumgr_api.app import create_app
from vgpumgr_api.auth import jwks
from vgpumgr_api.auth.oidc import Oidc
from vgpumgr_api.auth.oidc_settings import OidcSettings
from vgpumgr_api.db.database import Database

from tests.api.http.cloud import Caller, Cloud
from tests.api.http.issuer import Issuer, issuing, private_key, public_jwk
from vgpumgr.wire.problem import Code


@pytest.fixture
def issuer(tmp_path: Path) -> Iterator[Issuer]:
    with issuing(tmp_path / "issuer") as made:
        yield made


@pytest.fixture
def engine_name() -> str:
    """One engine is enough, because nothing here depends on the database."""
    return "sqlite"


class Door:
    """An API that trusts the issuer, and requests to it with a token."""

    def __init__(self, database: Database, issuer: Issuer, **changes: Any) -> None:
        oidc = Oidc(OidcSettings.model_validate(issuer.settings(**changes)))
        self.cloud = Cloud(database, create_app(database, oidc=oidc))

    def __call__(self, token: str, path: str = "/v1/tenants") -> str:
        answer = Caller(self.cloud.http, token)("GET", path)
        if answer.status_code == 503:
            assert answer.headers["retry-after"]
        return "ok" if answer.status_code == 200 else str(answer.json()["code"])


@pytest.fixture
def door(database: Database, issuer: Issuer) -> Iterator[Door]:
    made = Door(database, issuer)
    with made.cloud.http:
        yield made


def test_claims_give_the_role_that_settings_say(door: Door, issuer: Issuer) -> None:
    for name in ("acme", "blue"):
        door.cloud.operator.post("/v1/tenants", {"name": name})
    door.cloud.operator.post("/v1/tenants", {"name": "web", "account": "acme"})

    def names(*groups: str, **claims: Any) -> list[str]:
        caller = Caller(door.cloud.http, issuer.token(*groups, **claims))
        return [each["name"] for each in caller.get("/v1/tenants")["items"]]

    everything = ["acme", "blue", "web"]
    assert names("cloud-admins") == names("staff", "cloud-operators") == names("auditors") == everything
    assert names("owners", vgpumgr_tenant="acme") == names("guests", vgpumgr_tenant=["acme"]) == ["acme", "web"]
    assert names("owners", "guests", vgpumgr_tenant="web") == ["web"]
    assert door(issuer.token("cloud-admins"), "/v1/audit") == "ok"
    assert door(issuer.token("cloud-operators"), "/v1/audit") == Code.PERMISSION_DENIED

    admin = Caller(door.cloud.http, issuer.token("cloud-admins", sub="bob"))
    admin.post("/v1/tenants", {"name": "green"})
    [entry] = admin.get("/v1/audit?object=green")["items"]
    assert (entry["actor"], entry["role"], entry["credential"]) == ("admin:bob", "admin", None)


@pytest.mark.parametrize(
    "claims",
    [
        {"groups": []},
        {"groups": ["Cloud-Admins"]},
        {"groups": "cloud"},
        {"groups": {"cloud-admins": True}},
        {"groups": None},
        {"groups": ["owners"]},
        {"groups": ["guests"], "vgpumgr_tenant": ["acme", "blue"]},
        {"groups": ["guests"], "vgpumgr_tenant": []},
        {"groups": ["guests"], "vgpumgr_tenant": "nobody"},
        {"groups": ["guests"], "vgpumgr_tenant": "acme\n"},
        {"groups": ["owners"], "vgpumgr_tenant": {"name": "acme"}},
    ],
)
def test_who_has_no_role_or_no_tenant_gets_nowhere(door: Door, issuer: Issuer, claims: dict[str, Any]) -> None:
    for name in ("acme", "blue"):
        door.cloud.operator.post("/v1/tenants", {"name": name})
    assert door(issuer.token(**claims)) == Code.PERMISSION_DENIED


def test_claims_may_lie_inside_of_others(database: Database, issuer: Issuer) -> None:
    inside = Door(database, issuer, role_claim="realm.access.roles", subject_claim="email")
    assert inside(issuer.token(realm={"access": {"roles": ["auditors"]}}, email="a@x")) == "ok"
    assert inside(issuer.token(realm={"access": []}, email="a@x")) == Code.PERMISSION_DENIED
    assert inside(issuer.token(realm={"access": {"roles": ["auditors"]}})) == Code.AUTH_INVALID
    named = Door(database, issuer, role_claim="https://vgpumgr.example/roles")
    assert named(issuer.token(**{"https://vgpumgr.example/roles": "auditors"})) == "ok"


def soon(seconds: int) -> int:
    return int(time.time()) + seconds


class In(int):
    """Seconds from the time of the test run, which may be long after the parameters were made."""


@pytest.mark.parametrize(
    ("claims", "outcome"),
    [
        ({"exp": In(-10)}, "ok"),  # within the clock tolerance
        ({"exp": In(-100)}, Code.AUTH_EXPIRED),
        ({"exp": None}, Code.AUTH_INVALID),
        ({"exp": "soon"}, Code.AUTH_INVALID),
        ({"nbf": In(20)}, "ok"),
        ({"nbf": In(200)}, Code.AUTH_INVALID),
        ({"iat": In(200)}, Code.AUTH_INVALID),
        ({"aud": "another"}, Code.AUTH_INVALID),
        ({"aud": ["another", "vgpumgr"]}, "ok"),
        ({"aud": None}, Code.AUTH_INVALID),
        ({"iss": "https://127.0.0.1"}, Code.AUTH_INVALID),
        ({"iss": None}, Code.AUTH_INVALID),
        ({"sub": None}, Code.AUTH_INVALID),
        ({"sub": ""}, Code.AUTH_INVALID),
        ({"header": {"crit": ["b64"], "b64": True}}, Code.AUTH_INVALID),
        ({"header": {"alg": "RS512"}}, Code.AUTH_INVALID),
        ({"header": {"kid": "two"}}, Code.AUTH_INVALID),
    ],
)
def test_a_token_counts_for_this_api_at_this_time_only(
    door: Door, issuer: Issuer, claims: dict[str, Any], outcome: str
) -> None:
    said = {name: soon(value) if isinstance(value, In) else value for name, value in claims.items()}
    assert door(issuer.token("auditors", **said)) == outcome


def by_hand(header: dict[str, Any], claims: dict[str, Any], secret: bytes) -> str:
    """A token that PyJWT refuses to make."""

    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).decode().rstrip("=")

    signed = ".".join(part(json.dumps(each).encode()) for each in (header, claims))
    return f"{signed}.{part(hmac.digest(secret, signed.encode(), 'sha256'))}"


def forged(issuer: Issuer) -> dict[str, str]:
    claims = jwt.decode(issuer.token("cloud-admins"), options={"verify_signature": False})
    public = issuer.keys["one"].public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    good = issuer.token("auditors").split(".")
    return {
        "unsigned": jwt.encode(claims, None, algorithm="none", headers={"kid": "one"}),
        "signed with the public key as a secret": by_hand({"alg": "HS256", "kid": "one"}, claims, pem),
        "so, called RS256": by_hand({"alg": "RS256", "kid": "one"}, claims, pem),
        "with a list of keys": by_hand({"alg": "RS256", "kid": ["one"]}, claims, pem),
        "with an object as algorithm": by_hand({"alg": {"RS256": 1}, "kid": "one"}, claims, pem),
        "signed with another key of that name": jwt.encode(
            claims, private_key("rsa2048", 7), algorithm="RS256", headers={"kid": "one"}
        ),
        "with a key of its own": jwt.encode(
            claims,
            private_key("rsa2048", 7),
            algorithm="RS256",
            headers={"kid": "mine", "jwk": public_jwk(private_key("rsa2048", 7)), "jku": "https://127.0.0.1/"},
        ),
        "with another's signature": ".".join((*issuer.token("cloud-admins").split(".")[:2], good[2])),
        "cut off": ".".join((good[0], good[1], good[2][:-8])),
        "without a signature": f"{good[0]}.{good[1]}.",
        "no JSON": "e30.e30.AAAA",
        "long": "a" * 3000 + "." + "b" * 3000 + ".cc",
    }


def test_what_the_issuer_did_not_sign_counts_nothing(door: Door, issuer: Issuer) -> None:
    assert door(issuer.token("auditors")) == "ok"
    for what, token in forged(issuer).items():
        assert door(token) == Code.AUTH_INVALID, what
    assert door(str(door.cloud.operator.token)) == "ok"


def test_only_algorithms_that_were_allowed_with_keys_made_for_them(database: Database, issuer: Issuer) -> None:
    issuer.keys |= {"ec": private_key("p256"), "ec3": private_key("p384"), "ed": private_key("ed25519")}
    issuer.keys["weak"] = private_key("rsa1024")
    issuer.publish()
    some = Door(database, issuer)
    every = Door(database, issuer, algorithms=["RS256", "PS256", "ES256", "ES384", "EdDSA"])
    for key, algorithm, by_default, by_choice in (
        ("one", "RS256", "ok", "ok"),
        ("one", "PS256", Code.AUTH_INVALID, "ok"),
        ("one", "RS512", Code.AUTH_INVALID, Code.AUTH_INVALID),
        ("ec", "ES256", "ok", "ok"),
        ("ec3", "ES384", Code.AUTH_INVALID, "ok"),
        ("ed", "EdDSA", Code.AUTH_INVALID, "ok"),
        ("weak", "RS256", Code.AUTH_INVALID, Code.AUTH_INVALID),
    ):
        token = issuer.token("auditors", key=key, header={"alg": algorithm})
        assert (some(token), every(token)) == (by_default, by_choice), (key, algorithm)
    # The issuer declares the purpose of its keys.
    issuer.publish(alg="RS384")
    assert Door(database, issuer)(issuer.token("auditors")) == Code.AUTH_INVALID
    issuer.publish(use="enc")
    assert Door(database, issuer)(issuer.token("auditors")) == Code.AUTH_INVALID


def test_without_settings_nobody_elses_token_counts(cloud: Cloud, issuer: Issuer) -> None:
    Caller(cloud.http, issuer.token("cloud-admins")).refused(Code.AUTH_INVALID, "GET", "/v1/tenants")
    assert issuer.requests() == []


def test_keys_are_fetched_once_and_a_new_one_when_it_comes(
    door: Door, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [door(issuer.token("auditors")) for _ in range(5)] == ["ok"] * 5
    assert issuer.requests() == ["/.well-known/openid-configuration", "/jwks.json"]

    # Invented key ids do not make the API call the issuer each time.
    issuer.keys["two"] = private_key("rsa2048", 2)
    assert {door(issuer.token("auditors", header={"kid": f"invented-{n}"})) for n in range(9)} == {Code.AUTH_INVALID}
    assert len(issuer.requests()) == 2

    issuer.publish()
    monkeypatch.setattr(jwks, "MIN_INTERVAL_S", 0.0)
    assert door(issuer.token("auditors", key="two")) == "ok"
    assert len(issuer.requests()) == 4
    # The old key was withdrawn; it stays valid until the cached keys reach their maximum age.
    withdrawn = issuer.token("auditors")
    del issuer.keys["one"]
    issuer.publish()
    assert door(withdrawn) == "ok"
    monkeypatch.setattr(jwks, "MAX_AGE_S", 0.0)
    assert door(withdrawn) == Code.AUTH_INVALID
    assert door(issuer.token("auditors", key="two")) == "ok"


def answers(issuer: Issuer) -> dict[str, Callable[[], None]]:
    found = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/jwks.json"}
    discovery = ".well-known/openid-configuration"
    return {
        "no JSON": lambda: issuer.put("jwks.json", "<html>"),
        "no object": lambda: issuer.put("jwks.json", "[]"),
        "too much": lambda: issuer.put("jwks.json", {"keys": [], "more": "x" * (2 << 20)}),
        "not there": lambda: issuer.put(discovery, found | {"jwks_uri": f"{issuer.url}/nothing"}),
        "another issuer": lambda: issuer.put(discovery, found | {"issuer": "https://other.example"}),
        "keys in clear text": lambda: issuer.put(discovery, found | {"jwks_uri": "http://keys.example/"}),
        "no keys named": lambda: issuer.put(discovery, {"issuer": issuer.url}),
    }


def test_an_issuer_that_answers_nonsense_is_one_that_cannot_be_reached(
    database: Database, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "MIN_INTERVAL_S", 0.0)
    monkeypatch.setattr(jwks, "MAX_AGE_S", 0.0)
    for what in answers(issuer):
        door = Door(database, issuer)
        assert door(issuer.token("auditors")) == "ok"
        answers(issuer)[what]()
        # Cached keys stay valid; other keys, and a newly started API, get an error.
        assert door(issuer.token("auditors")) == "ok", what
        assert Door(database, issuer)(issuer.token("auditors")) == Code.ISSUER_UNREACHABLE, what
        issuer.publish()
        issuer.put(".well-known/openid-configuration", {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/jwks.json"})
        assert door(issuer.token("auditors")) == "ok", what
    monkeypatch.setattr(jwks, "KEEP_S", 0.0)
    answers(issuer)["no JSON"]()
    assert door(issuer.token("auditors")) == Code.ISSUER_UNREACHABLE


def test_an_issuer_that_is_away_and_one_with_another_certificate(
    database: Database, issuer: Issuer, tmp_path: Path
) -> None:
    untrusted = Oidc(OidcSettings.model_validate(issuer.settings(ca_file=None)))
    cloud = Cloud(database, create_app(database, oidc=untrusted))
    Caller(cloud.http, issuer.token("auditors")).refused(Code.ISSUER_UNREACHABLE, "GET", "/v1/tenants")
    away = Door(database, issuer, jwks_url="https://127.0.0.1:1/jwks.json")
    assert away(issuer.token("auditors")) == Code.ISSUER_UNREACHABLE
    assert away(str(away.cloud.operator.token)) == "ok"


def test_a_repeated_key_is_the_persons_own(door: Door, issuer: Issuer) -> None:
    key = {"Idempotency-Key": "same"}
    alice, bob = (Caller(door.cloud.http, issuer.token("cloud-operators", sub=who)) for who in ("alice", "bob"))
    assert alice.ok("POST", "/v1/tenants", 201, {"name": "a"}, headers=key)["name"] == "a"
    assert bob.ok("POST", "/v1/tenants", 201, {"name": "b"}, headers=key)["name"] == "b"
    again = Caller(door.cloud.http, issuer.token("cloud-operators", exp=soon(200)))
    assert again.ok("POST", "/v1/tenants", 201, {"name": "a"}, headers=key)["name"] == "a"
    again.refused(Code.IDEMPOTENCY_MISMATCH, "POST", "/v1/tenants", {"name": "c"}, headers=key)


def test_each_of_several_issuers_speaks_for_its_own_people_only(
    database: Database, issuer: Issuer, tmp_path: Path
) -> None:
    with issuing(tmp_path / "other") as other:
        other.keys["one"] = private_key("rsa2048", 3)
        other.publish()
        bound = {"roles": {"tenant-admin": ["owners"], "tenant-viewer": ["guests"]}, "tenants": ["acme", "lab"]}
        settings = [issuer.settings(name="corp"), other.settings(name="customers") | bound]
        oidc = Oidc(*(OidcSettings.model_validate(each) for each in settings))
        cloud = Cloud(database, create_app(database, oidc=oidc))
        for name in ("acme", "blue"):
            cloud.operator.post("/v1/tenants", {"name": name})

        def told(token: str, path: str = "/v1/tenants") -> str:
            answer = Caller(cloud.http, token)("GET", path)
            return "ok" if answer.status_code == 200 else str(answer.json()["code"])

        assert told(issuer.token("cloud-admins"), "/v1/audit") == "ok"
        assert told(other.token("owners", vgpumgr_tenant="acme")) == "ok"
        # Neither issuer is trusted for the other's groups, tenants or keys.
        assert told(other.token("cloud-admins")) == Code.PERMISSION_DENIED
        assert told(other.token("owners", vgpumgr_tenant="blue")) == Code.PERMISSION_DENIED
        assert told(other.token("cloud-admins", iss=issuer.url)) == Code.AUTH_INVALID
        assert told(issuer.token("cloud-admins", iss=other.url)) == Code.AUTH_INVALID
        before = len(issuer.requests()) + len(other.requests())
        for stranger in ("https://nobody.example", "", None):
            assert told(issuer.token("cloud-admins", iss=stranger)) == Code.AUTH_INVALID
        for odd in (7, [issuer.url], {issuer.url: 1}):
            assert told(by_hand({"alg": "RS256", "kid": "one"}, {"iss": odd}, b"x")) == Code.AUTH_INVALID
        assert len(issuer.requests()) + len(other.requests()) == before

        # The same subject at two issuers is two users, for the audit and for idempotency keys.
        key = {"Idempotency-Key": "same"}
        one = Caller(cloud.http, issuer.token("cloud-operators", sub="bob"))
        one.ok("POST", "/v1/tenants", 201, {"name": "green"}, headers=key)
        wanted = {"role": "tenant", "subject": "acme", "expires_in_s": 60}
        Caller(cloud.http, other.token("owners", vgpumgr_tenant="acme", sub="bob")).post("/v1/tokens", wanted)
        actors = [each["actor"] for each in cloud.admin.get("/v1/audit")["items"]]
        assert {"operator:corp/bob", "tenant-admin:customers/bob"} <= set(actors)

        # An unreachable issuer locks out only its own users.
        away = [settings[0], other.settings(name="customers", jwks_url="https://127.0.0.1:1/jwks.json") | bound]
        halved = Cloud(database, create_app(database, oidc=Oidc(*(OidcSettings.model_validate(each) for each in away))))
        assert Caller(halved.http, issuer.token("auditors"))("GET", "/v1/tenants").status_code == 200
        lost = other.token("owners", vgpumgr_tenant="acme")
        Caller(halved.http, lost).refused(Code.ISSUER_UNREACHABLE, "GET", "/v1/tenants")


def test_tokens_of_another_type_or_for_another_client_are_refused(database: Database, issuer: Issuer) -> None:
    strict = Door(database, issuer, token_type="at+jwt", authorized_parties=["console", "cli"])
    typed = {"typ": "application/AT+JWT"}
    for header, claims, outcome in (
        (typed, {"azp": "console"}, "ok"),
        ({"typ": "at+jwt"}, {"client_id": "cli"}, "ok"),
        (typed, {"azp": "other", "client_id": "cli"}, Code.AUTH_INVALID),
        (typed, {}, Code.AUTH_INVALID),
        (typed, {"azp": ["console"]}, Code.AUTH_INVALID),
        ({"typ": "JWT"}, {"azp": "console"}, Code.AUTH_INVALID),
        ({"typ": None}, {"azp": "console"}, Code.AUTH_INVALID),
    ):
        assert strict(issuer.token("auditors", header=header, **claims)) == outcome, (header, claims)


class SlowIssuer:
    """Answers once `let` is set; `asked` counts the requests."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.asked = threading.Semaphore(0)
        self.keys: dict[str, Any] = {"keys": [public_jwk(private_key("rsa2048"), kid="one")]}
        self.now_s = 0.0

    def __call__(self) -> dict[str, Any]:
        self.asked.release()
        assert self.let.wait(60)
        return self.keys


def test_invented_keys_do_not_wait_for_a_slow_issuer() -> None:
    issuer = SlowIssuer()
    keys = jwks.KeySet(issuer, clock=lambda: issuer.now_s)
    issuer.let.set()
    keys.key("one", "RS256")
    assert issuer.asked.acquire(timeout=60)
    issuer.let.clear()
    issuer.now_s += jwks.MIN_INTERVAL_S
    told: list[type[Exception]] = []

    def ask() -> None:
        with pytest.raises(jwks.UnknownKeyError) as caught:
            keys.key("invented", "RS256")
        told.append(caught.type)

    first = threading.Thread(target=ask)
    first.start()
    assert issuer.asked.acquire(timeout=60)
    issuer.now_s += jwks.WAIT_S
    for number in range(50):
        with pytest.raises(jwks.IssuerUnreachableError):
            keys.key(f"invented-{number}", "RS256")
        keys.key("one", "RS256")
    # However long the request took, the API leaves the issuer alone for a while after it.
    issuer.now_s += 10 * jwks.MIN_INTERVAL_S
    issuer.let.set()
    first.join(60)
    assert told == [jwks.UnknownKeyError]
    with pytest.raises(jwks.UnknownKeyError):
        keys.key("invented", "RS256")
    assert not issuer.asked.acquire(blocking=False)
    issuer.now_s += jwks.MIN_INTERVAL_S
    with pytest.raises(jwks.UnknownKeyError):
        keys.key("invented", "RS256")
    assert issuer.asked.acquire(blocking=False)


def test_an_answer_without_end_is_waited_for_no_longer_and_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks, "FETCH_S", 0.0)
    issuer = SlowIssuer()
    keys = jwks.KeySet(issuer, clock=lambda: issuer.now_s)
    for _ in range(3):
        with pytest.raises(jwks.IssuerUnreachableError):
            keys.key("one", "RS256")
        issuer.now_s += 2 * jwks.KEEP_S
    assert issuer.asked.acquire(timeout=60)
    assert not issuer.asked.acquire(blocking=False)
    issuer.let.set()
