# SPDX-License-Identifier: Apache-2.0
"""The table ``[oidc]`` of ``api.toml``, or several: the trusted issuers, and the roles that their claims give."""

import ipaddress
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Only algorithms with a public key. With a shared secret, any party that can check a token could also make one."""

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
Values = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)]


def checked_url(url: str) -> str:
    """Returns a URL if no one on the network path can alter its answer: https, or loopback. Else raises ValueError."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https" and host and not parts.query and not parts.fragment and parts.username is None:
        return url
    if parts.scheme == "http" and (host == "localhost" or _is_loopback(host)):
        return url
    raise ValueError(f"{url[:200]!r} is not a URL that begins with https://, which only this machine's own need not")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


Url = Annotated[str, AfterValidator(checked_url)]


class RoleMap(BaseModel):
    """The values of `role_claim` that give each role. The first role that matches applies, in this order.

    The two tenant roles need the tenant claim. A token without that claim is refused; it does not get access to all
    tenants.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    admin: Values = ()
    operator: Values = ()
    tenant_admin: Annotated[Values, Field(alias="tenant-admin")] = ()
    viewer: Values = ()
    tenant_viewer: Annotated[Values, Field(alias="tenant-viewer")] = ()


class OidcSettings(BaseModel):
    """The settings of one issuer. `jwks_url`: where its keys are; if None, its discovery document says where.

    `ca_file`: the CA for the connection to the issuer. `name`: the prefix of its people's names in events and the
    audit; "" if it is the only issuer. `tenants`: the tenants that its tokens may name; None: all tenants.
    `token_type`: the required `typ` header, for example ``at+jwt`` for access tokens (RFC 9068). `authorized_parties`:
    the clients (`azp` or `client_id`) that its tokens may be issued to.

    A claim is a member of the token, or a dotted path to a nested member, for example ``realm_access.roles``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    issuer: Url
    audience: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?)?$")] = ""
    tenants: Values | None = None
    token_type: Annotated[str, Field(min_length=1)] | None = None
    authorized_parties: Annotated[Values, Field(min_length=1)] | None = None
    jwks_url: Url | None = None
    ca_file: Annotated[Path | None, Field(strict=False)] = None
    algorithms: Annotated[tuple[Algorithm, ...], Field(strict=False, min_length=1)] = ("RS256", "ES256")
    leeway_s: Annotated[int, Field(ge=0, le=300)] = 30
    subject_claim: Annotated[str, Field(min_length=1)] = "sub"
    role_claim: Annotated[str, Field(min_length=1)] = "groups"
    tenant_claim: Annotated[str, Field(min_length=1)] = "vgpumgr_tenant"
    roles: RoleMap

    @model_validator(mode="after")
    def _bound(self) -> Self:
        if self.tenants is not None and (self.roles.admin or self.roles.operator or self.roles.viewer):
            raise ValueError("an issuer limited to `tenants` gives no cloud-wide roles; leave out the one or the other")
        return self
