# SPDX-License-Identifier: Apache-2.0
"""The API with an operator's token, without the CLI: starting another interpreter takes seconds in a lab host."""

import json
import tomllib
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AGENT_SETTINGS = Path("/etc/vgpumgr/agent.toml")
TOKEN_FILE = Path("/etc/vgpumgr/operator-token")
_LIMIT_S = 60


class ApiRefusedError(Exception):
    """The API refused a request. `code`: one of the frozen error codes."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        self.status = status
        self.code = code
        super().__init__(f"{status} {code}: {detail}")


@dataclass(frozen=True)
class Api:
    """The API that this lab host's agent uses. Raises ApiRefusedError, or OSError when nobody answers."""

    def call(self, method: str, path: str, body: object = None, *, if_match: int | None = None) -> Any:
        """Send one request and return its answer, None if the answer is empty."""
        text = self._asked(method, path, body, if_match)
        return json.loads(text) if text else None

    def text(self, path: str) -> str:
        """An answer that is not JSON."""
        return self._asked("GET", path, None, None).decode()

    def _asked(self, method: str, path: str, body: object, if_match: int | None) -> bytes:
        """The token is read each time."""
        headers = {"Authorization": f"Bearer {TOKEN_FILE.read_text().strip()}"}
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
        if if_match is not None:
            headers["If-Match"] = f'"{if_match}"'
        data = None if body is None else json.dumps(body).encode()
        url = tomllib.loads(AGENT_SETTINGS.read_text())["api_url"]
        request = urllib.request.Request(f"{url}{path}", data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_LIMIT_S) as response:
                return bytes(response.read())
        except urllib.error.HTTPError as error:
            problem = json.loads(error.read())
            raise ApiRefusedError(error.code, problem["code"], problem["detail"]) from error

    def answers(self) -> bool:
        """Whether the API is up and reaches its database."""
        try:
            self.call("GET", "/v1/health")
        except (OSError, ApiRefusedError):
            return False
        return True

    def items(self, path: str) -> list[dict[str, Any]]:
        """A list that fits on one page."""
        return list(self.call("GET", path)["items"])

    # ---- what tests need often

    def tenant(self, name: str, *, share_permille: int, timeslice_us: int = 1000) -> None:
        """Make a tenant, or give this quota to an existing one."""
        try:
            self.call("POST", "/v1/tenants", {"name": name})
        except ApiRefusedError as refused:
            if refused.status != 409:
                raise
        self.quota(name, share_permille=share_permille, mem_bytes=1 << 30, slices=16, timeslice_us=timeslice_us)

    def quota(self, tenant: str, **limits: int) -> None:
        """Change some limits of a tenant."""
        path = f"/v1/quotas/{tenant}"
        self.call("PATCH", path, limits, if_match=self.call("GET", path)["generation"])

    def claim(self, tenant: str, *, share_permille: int, vm_uuid: str | None = None) -> str:
        """Claim a slice of the smallest memory class; return its UUID."""
        profile = f"p{share_permille}"
        try:
            self.call(
                "POST", "/v1/profiles", {"name": profile, "share_permille": share_permille, "mem_bytes": 16 << 20}
            )
        except ApiRefusedError as refused:
            if refused.status != 409:
                raise
        wanted = {"tenant": tenant, "profile": profile}
        return str(self.call("POST", "/v1/slices", wanted | ({"vm_uuid": vm_uuid} if vm_uuid else {}))["id"])

    def slice(self, slice_id: str) -> dict[str, Any] | None:
        """A claim, or None once it is gone."""
        try:
            return dict(self.call("GET", f"/v1/slices/{slice_id}"))
        except ApiRefusedError as refused:
            if refused.status != 404:
                raise
            return None

    def delete(self, slice_id: str) -> None:
        """Release a claim; harmless when it is gone."""
        try:
            self.call("DELETE", f"/v1/slices/{slice_id}")
        except ApiRefusedError as refused:
            if refused.status != 404:
                raise
