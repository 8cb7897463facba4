# SPDX-License-Identifier: Apache-2.0
"""Tenants, their quotas, and the profiles of their claims."""

from collections.abc import Iterator

from vgpumgr.client.calls import Calls, trial
from vgpumgr.client.transport import Match, segment
from vgpumgr.wire.resources import Profile, ProfileCreate, Quota, QuotaPatch, Tenant, TenantCreate, TenantPatch


class TenantCalls(Calls):
    """Part of Client."""

    def tenants(
        self, *, kind: str | None = None, account: str | None = None, external_id: str | None = None
    ) -> Iterator[Tenant]:
        return self._pages("/v1/tenants", Tenant, kind=kind, account=account, external_id=external_id)

    def tenant(self, name: str) -> Tenant:
        return self._get(f"/v1/tenants/{segment(name)}", Tenant)

    def create_tenant(
        self, tenant: TenantCreate, *, idempotency_key: str | None = None, validate_only: bool = False
    ) -> Tenant:
        return self._post("/v1/tenants", Tenant, tenant, idempotency_key=idempotency_key, params=trial(validate_only))

    def patch_tenant(self, name: str, patch: TenantPatch, *, if_match: Match, validate_only: bool = False) -> Tenant:
        return self._patch(f"/v1/tenants/{segment(name)}", Tenant, patch, if_match, validate_only=validate_only)

    def delete_tenant(self, name: str, *, if_match: Match | None = None, validate_only: bool = False) -> None:
        self._delete(f"/v1/tenants/{segment(name)}", if_match, validate_only=validate_only)

    def quotas(self, *, account: str | None = None) -> Iterator[Quota]:
        return self._pages("/v1/quotas", Quota, account=account)

    def quota(self, tenant: str) -> Quota:
        return self._get(f"/v1/quotas/{segment(tenant)}", Quota)

    def patch_quota(self, tenant: str, patch: QuotaPatch, *, if_match: Match, validate_only: bool = False) -> Quota:
        path = f"/v1/quotas/{segment(tenant)}"
        return self._patch(path, Quota, patch, if_match, validate_only=validate_only)

    def profiles(self, *, mode: str | None = None) -> Iterator[Profile]:
        return self._pages("/v1/profiles", Profile, mode=mode)

    def profile(self, name: str) -> Profile:
        return self._get(f"/v1/profiles/{segment(name)}", Profile)

    def create_profile(
        self, profile: ProfileCreate, *, idempotency_key: str | None = None, validate_only: bool = False
    ) -> Profile:
        return self._post(
            "/v1/profiles", Profile, profile, idempotency_key=idempotency_key, params=trial(validate_only)
        )

    def delete_profile(self, name: str, *, if_match: Match, validate_only: bool = False) -> None:
        self._delete(f"/v1/profiles/{segment(name)}", if_match, validate_only=validate_only)
