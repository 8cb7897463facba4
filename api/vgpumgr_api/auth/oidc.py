# SPDX-License-Identifier: Apache-2.0
"""People who log in at an OIDC issuer: checks the issuer's token and reads its claims (RFC 7519, RFC 8725).

There may be several issuers. The token's `iss` claim only selects the issuer whose keys and rules apply. A token is
accepted only if its signature uses an allowed algorithm and one of that issuer's keys, its audience matches, and the
token's period of validity includes the present. A token cannot relax these checks by the key or algorithm that it
names.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import jwt

from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import TokenRole
from vgpumgr_api.auth.jwks import IssuerUnreachableError, KeySet, UnknownKeyError, http_fetch
from vgpumgr_api.auth.oidc_settings import OidcSettings
from vgpumgr_api.errors import Refusal

_JWT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
LAST_S = 253402300799
"""The end of the year 9999, the latest time of a datetime."""

_TENANT = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class Person:
    """A person who has logged in. `realm` is our name of the issuer, "" if it is the only one.

    `subject` is unique within the issuer. `tenant` None: the person is not bound to a tenant. `expires_at`: when the
    token ends, including the leeway for the issuer's clock.
    """

    issuer: str
    realm: str
    subject: str
    role: TokenRole
    tenant: str | None
    expires_at: datetime


class Oidc:
    """Checks tokens of several issuers. Threads share it; a check may wait for the token's issuer."""

    def __init__(self, *settings: OidcSettings) -> None:
        """Raises ssl.SSLError or OSError for a CA file that cannot be used."""
        self._issuers = {each.issuer: Issuer(each) for each in settings}

    @staticmethod
    def looks_like_one(secret: str) -> bool:
        """Whether a bearer token may be an issuer's; our own tokens contain no dots."""
        return _JWT.fullmatch(secret) is not None

    def person(self, secret: str) -> Person:
        """Returns the bearer of the token. Raises Refusal, whose text quotes nothing of the token."""
        try:
            said = jwt.decode(secret, options={"verify_signature": False}).get("iss")
        except jwt.PyJWTError as error:
            raise _invalid(_words(error)) from None
        issuer: Issuer | None = self._issuers.get(said) if isinstance(said, str) else None
        if issuer is None:
            raise _invalid("its issuer is not accepted here")
        return issuer.person(secret)


class Issuer:
    """Checks tokens of one issuer. Threads share it; a check may wait for the issuer."""

    def __init__(self, settings: OidcSettings) -> None:
        """Raises ssl.SSLError or OSError for a CA file that cannot be used."""
        self._settings = settings
        self._keys = KeySet(http_fetch(settings.issuer, settings.jwks_url, settings.ca_file))

    def person(self, secret: str) -> Person:
        """Returns the bearer of the token. Raises Refusal, whose text quotes nothing of the token."""
        return self._mapped(self._claims(secret))

    def _claims(self, secret: str) -> Mapping[str, Any]:
        settings = self._settings
        try:
            header = jwt.get_unverified_header(secret)
            algorithm, key_id = header.get("alg"), header.get("kid")
            if algorithm not in settings.algorithms:
                raise _invalid(f"its algorithm is not one of {', '.join(settings.algorithms)}")
            if "crit" in header:
                raise _invalid("it requires an extension that this API does not know (crit)")
            if settings.token_type is not None and _media_type(header.get("typ")) != _media_type(settings.token_type):
                raise _invalid(f"it is not of the type {settings.token_type}")
            claims: dict[str, Any] = jwt.decode(
                secret,
                self._keys.key(key_id, algorithm),
                algorithms=[algorithm],
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway_s,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.ExpiredSignatureError:
            raise Refusal(Code.AUTH_EXPIRED, "this token has expired; log in again") from None
        except (jwt.PyJWTError, UnknownKeyError) as error:
            raise _invalid(_words(error)) from None
        except IssuerUnreachableError:
            raise Refusal(
                Code.ISSUER_UNREACHABLE, f"the keys of {settings.issuer} cannot be fetched now; try again in a moment"
            ) from None
        return claims

    def _mapped(self, claims: Mapping[str, Any]) -> Person:
        settings = self._settings
        party = claims.get("azp", claims.get("client_id"))
        if settings.authorized_parties is not None and party not in settings.authorized_parties:
            raise _invalid("it was issued to a client that is not accepted here")
        subject = _claim(claims, settings.subject_claim)
        if not isinstance(subject, str) or not subject:
            raise _invalid(f"it has no {settings.subject_claim}")
        has = set(_texts(_claim(claims, settings.role_claim)))
        for values, role, of_tenant in (
            (settings.roles.admin, TokenRole.ADMIN, False),
            (settings.roles.operator, TokenRole.OPERATOR, False),
            (settings.roles.tenant_admin, TokenRole.TENANT_ADMIN, True),
            (settings.roles.viewer, TokenRole.VIEWER, False),
            (settings.roles.tenant_viewer, TokenRole.VIEWER, True),
        ):
            if has.intersection(values):
                tenant = self._tenant(claims) if of_tenant else None
                ends = datetime.fromtimestamp(min(int(claims["exp"]) + settings.leeway_s, LAST_S), UTC)
                return Person(
                    issuer=settings.issuer,
                    realm=settings.name,
                    subject=subject,
                    role=role,
                    tenant=tenant,
                    expires_at=ends,
                )
        raise Refusal(
            Code.PERMISSION_DENIED, f"nothing in {settings.role_claim} of this token gives a role; ask an operator"
        )

    def _tenant(self, claims: Mapping[str, Any]) -> str:
        found = _texts(_claim(claims, self._settings.tenant_claim))
        if len(found) != 1 or not _TENANT.fullmatch(found[0]):
            raise Refusal(
                Code.PERMISSION_DENIED,
                f"{self._settings.tenant_claim} of this token does not name exactly one tenant; ask an operator",
            )
        if self._settings.tenants is not None and found[0] not in self._settings.tenants:
            raise Refusal(Code.PERMISSION_DENIED, "the issuer of this token may not act for the tenant that it names")
        return found[0]


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Returns the member of this name, else the value at this dotted path, else None."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _texts(value: Any) -> list[str]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]


def _media_type(said: Any) -> str:
    """Normalises a media type by RFC 7515 4.1.9: case is ignored, and a type without a slash is under application/."""
    return said.lower().removeprefix("application/") if isinstance(said, str) else ""


def _words(error: Exception) -> str:
    """Returns PyJWT's error text as one line. The text quotes no claims, only the names of missing claims."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _invalid(why: str) -> Refusal:
    return Refusal(Code.AUTH_INVALID, f"this token is invalid: {why}")
