# SPDX-License-Identifier: Apache-2.0
"""The table ``[oidc]`` of ``api.toml``, or several: whose tokens of people are believed, and which role claims give."""

import ipaddress
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Those with a public key. One with a shared secret would let whoever may check a token make one."""

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
Values = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)]


def checked_url(url: str) -> str:
    """Returns an address whose answer nobody on the way can change. ValueError."""
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
    """Values of `role_claim` that give a role. The first role that fits counts, in this order.

    The two of tenants need the claim that names the tenant; without one nobody is let in, rather than everywhere.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    admin: Values = ()
    operator: Values = ()
    tenant_admin: Annotated[Values, Field(alias="tenant-admin")] = ()
    viewer: Values = ()
    tenant_viewer: Annotated[Values, Field(alias="tenant-viewer")] = ()


class OidcSettings(BaseModel):
    """`jwks_url`: where the issuer's keys are; else its discovery document says so. `ca_file`: who vouches for it.

    `name`: of the issuer, before its people's names in events and the audit; "" if it is the only one. `tenants`: those
    that it speaks for, None: all. `token_type`: what the header's `typ` must be, as ``at+jwt`` for access tokens (RFC
    9068). `authorized_parties`: the clients (`azp` or `client_id`) for which its tokens must have been made.

    A claim is a member of the token, or with dots one inside of others, as in ``realm_access.roles``.
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
            raise ValueError("who speaks for some tenants gives no role of the whole cloud; leave tenants or those out")
        return self
