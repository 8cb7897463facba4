# SPDX-License-Identifier: Apache-2.0
"""Pages of long lists: the first page, one far behind it, and the pages of one tenant and one host."""

import json
from collections.abc import Sequence
from typing import Any

from tests.bench.api.load import Address, ask_once, closed_loop, message
from tests.bench.api.sizes import Bench

PAGE = 1000
FAR = 20
"""The number of pages to skip before the far one."""


def measure(bench: Bench) -> dict[str, Any]:
    """One client fetches one page after the other."""
    whole = bench.whole
    token, tenant = whole.operator, next(iter(whole.tenants))
    rows: dict[str, Any] = {}
    addresses = bench.addresses[:1]
    for kind in ("slices", "gpus", "hosts"):
        first = f"/v1/{kind}?page_size={PAGE}"
        rows[f"{kind}, first {PAGE}"] = _figures(bench, addresses, first, token)
        if far := _far(addresses, first, token):
            rows[f"{kind}, {PAGE} after {far[1]}"] = _figures(bench, addresses, far[0], token)
    mine = f"/v1/slices?tenant={tenant}&page_size={PAGE}"
    rows[f"slices of a tenant, first {PAGE}"] = _figures(bench, addresses, mine, whole.tenants[tenant])
    rows["slices of a host"] = _figures(bench, addresses, "/v1/slices?host=host-1", token)
    rows["one slice by its VM"] = _figures(bench, addresses, f"/v1/slices?vm_uuid={_vm(addresses, token)}", token)
    return {"figures": {f"lists, {whole.slices} slices, one client": rows}, "targets": []}


def _figures(bench: Bench, addresses: Sequence[Address], path: str, token: str) -> dict[str, float]:
    said = message("GET", path, token)
    tally = closed_loop(addresses, 1, min(bench.sizes.seconds, 3), lambda _: said)
    return {
        "pages/s": round(tally.per_s, 1),
        "p50 ms": round(tally.quantile_ms(0.5), 1),
        "p99 ms": round(tally.quantile_ms(0.99), 1),
    }


def _far(addresses: Sequence[Address], first: str, token: str) -> tuple[str, int] | None:
    """Returns the path of a later page, and the number of items before it; None if the list is too short."""
    path, passed = first, 0
    for _ in range(FAR):
        page = _page(addresses, path, token)
        if not page["next_page_token"]:
            break
        passed += len(page["items"])
        path = f"{first}&page_token={page['next_page_token']}"
    return (path, passed) if passed else None


def _vm(addresses: Sequence[Address], token: str) -> str:
    return str(_page(addresses, "/v1/slices?page_size=1", token)["items"][0]["vm_uuid"])


def _page(addresses: Sequence[Address], path: str, token: str) -> Any:
    answer = ask_once(addresses[0], message("GET", path, token))
    assert answer.status == 200, answer.body
    return json.loads(answer.body)
