# SPDX-License-Identifier: Apache-2.0
"""An API in memory, behind httpx2.MockTransport: the routes, pages of two items, generations, and failures on
demand.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs

import httpx2
from pydantic import BaseModel

from tests.unit.cli.fake_content import (
    GPU,
    MADE,
    OPERATIONS,
    SLICES,
    TOKENS,
    contents,
    id_of,
    ledger_of,
    operation_of,
    slice_of,
    unbooked_of,
)
from vgpumgr.wire import fleet, operations, resources
from vgpumgr.wire.problem import MEDIA_TYPE, STATUS, Code, Problem, Reason
from vgpumgr.wire.usage import LedgerRow, UnbookedRow

TOKEN = "vgt_secret-of-the-operator"
PAGE = 2


class RefusedError(Exception):
    """A refusal that the fake API answers as a problem document."""

    def __init__(self, code: Code, detail: str, reasons: tuple[Reason, ...] = ()) -> None:
        self.problem = Problem(
            title="Refused",
            status=STATUS[code],
            detail=detail,
            code=code,
            request_id="req-1",
            reasons=list(reasons),
        )
        super().__init__(detail)


@dataclass
class FakeApi:
    """`requests`: the received requests. `answers`: sent in their order before the routes' own answers."""

    requests: list[httpx2.Request] = field(default_factory=list)
    answers: list[Callable[[httpx2.Request], httpx2.Response]] = field(default_factory=list)
    lists: dict[str, list[Any]] = field(default_factory=contents)
    usage: list[list[resources.Usage]] = field(default_factory=list)
    current_usage: list[resources.Usage] = field(default_factory=list)
    left_out: list[UnbookedRow] = field(default_factory=lambda: [unbooked_of("gone")])
    booked: list[LedgerRow] = field(default_factory=lambda: [ledger_of("blue"), ledger_of("green", closed=False)])
    releasing_polls: int = 2
    running_polls: int = 1

    @property
    def transport(self) -> httpx2.MockTransport:
        return httpx2.MockTransport(self.handle)

    def seen(self) -> list[str]:
        """Return the method and path of every request."""
        return [f"{request.method} {request.url.raw_path.decode()}" for request in self.requests]

    def refuse(self, code: Code, detail: str, *reasons: Reason, times: int = 1) -> None:
        """Answer the next requests with a problem."""
        problem = RefusedError(code, detail, reasons).problem
        self.answers += [lambda _: _problem(problem)] * times

    def fail(self, error: type[BaseException], text: str = "gone", *, times: int = 1) -> None:
        """Make the next requests fail in the transport."""

        def raise_it(request: httpx2.Request) -> httpx2.Response:
            raise error(text)

        self.answers += [raise_it] * times

    def answer(self, status: int, content: str) -> None:
        """Answer the next request with this status and content."""
        self.answers.append(lambda _: httpx2.Response(status, text=content))

    def handle(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        if self.answers:
            return self.answers.pop(0)(request)
        try:
            return self.route(request)
        except RefusedError as error:
            return _problem(error.problem)

    def route(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path == "/":
            return _json({"versions": ["v1"]})
        if path == "/v1/health":
            return _json({"status": "ok"})
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise RefusedError(Code.AUTH_INVALID, "the token is unknown or expired; make another")
        query = {name: values[-1] for name, values in parse_qs(request.url.query.decode()).items()}
        if match := re.fullmatch(r"/v1/hosts/([^/]+)/(desired|report|certificate|slices/([^/]+):bind)", path):
            return self.fleet_route(match[2].split("/")[0], match[3])
        if path == "/v1/enroll":
            return _json(fleet.Enrolled(host_id=id_of(3, 1), name="gpu-a", token="vgt_host"))
        if path == "/v1/usage":
            if "page_token" not in query:
                self.current_usage = self.usage.pop(0) if len(self.usage) > 1 else self.usage[0]
            return _page(self.current_usage, query)
        if path.startswith("/v1/usage/ledger"):
            return self.ledger(query, as_csv=path.endswith(".csv"))
        if path.startswith("/v1/usage/unbooked"):
            return _as_csv(self.left_out, UnbookedRow) if path.endswith(".csv") else _page(self.left_out, query)
        if path == "/v1/events/watch":
            return self.watch(query, request.headers.get("Last-Event-ID", ""))
        if path in ("/v1/slices:batch", "/v1/slices:explain"):
            return self.claims(path.partition(":")[2], request, query)
        match = re.fullmatch(r"/v1/([a-z]+)(?:/([^:/]+))?(?::([a-z-]+))?", path)
        if match is None or match[1] not in self.lists:
            raise RefusedError(Code.ROUTE_UNKNOWN, "no such path; GET /openapi.json lists them")
        kind, name, verb = match.groups()
        if verb:
            found = self.one(kind, name)
            if kind == "operations":
                operations.OperationCancel.model_validate_json(request.content)
                return _json(operation_of(found.id, "cancelled"))
            if verb == "rehome":
                operations.GpuRehome.model_validate_json(request.content)
                self.matched(kind, name, request, needed=True)
                return _json(operation_of(OPERATIONS[0], "succeeded"), 202)
            if verb in ("cordon", "uncordon", "maintenance", "drain"):
                self.matched(kind, name, request, needed=True)
                if verb == "drain":
                    operations.HostDrain.model_validate_json(request.content)
                    return _json(self.lists["operations"][0], 202)
                state = {"cordon": "cordoned", "uncordon": "ready"}.get(verb, verb)
                return _json(found.model_copy(update={"state": resources.HostState(state)}))
            if verb == "reenroll":
                return _json(resources.HostCreated(**found.model_dump(), enroll_token="vge_once"))
            if verb == "fence":
                resources.HostFence.model_validate_json(request.content)
                self.matched(kind, name, request, needed=True)
                return _json(found.model_copy(update={"fenced_at": MADE, "enrolled": False, "online": False}))
            self.matched(kind, name, request, needed=False)
            return _json(found.model_copy(update={"epoch_confirmed": True}))
        if name is None:
            return self.listed(kind, query) if request.method == "GET" else self.create(kind, request, query)
        if request.method == "GET":
            return self.read(kind, name)
        if request.method == "PATCH":
            return self.patch(kind, name, request)
        return self.delete(kind, name, request)

    def fleet_route(self, what: str, slice_id: str | None) -> httpx2.Response:
        if what == "report":
            return _json(fleet.Reported(accepted=True))
        if what == "certificate":
            return _json(fleet.HostCertificate(certificate="x", expires_at=MADE, renew_after_s=1))
        if what == "slices":
            return _json(self.one("slices", str(slice_id)))
        return httpx2.Response(204)

    def ledger(self, query: dict[str, str], *, as_csv: bool) -> httpx2.Response:
        found = [row for row in self.booked if query.get("tenant") in (None, row.tenant)]
        return _as_csv(found, LedgerRow) if as_csv else _page(found, query)

    def claims(self, verb: str, request: httpx2.Request, query: dict[str, str]) -> httpx2.Response:
        if verb == "explain":
            wanted = resources.SliceCreate.model_validate_json(request.content)
            told = [Reason(code="host.cordoned", detail="their host is cordoned", count=1)]
            fits = wanted.host != "gpu-b"
            told += [] if fits else [Reason(code="quota.slices", detail="quota of acme: no slice is left of 10")]
            place = {"host": "gpu-a", "gpu": GPU} if fits else {"host": None, "gpu": None, "detail": told[-1].detail}
            return _json(resources.Explanation(fits=fits, gpus=2, fitting=int(fits), reasons=told, **place))
        batch = resources.SliceBatch.model_validate_json(request.content).slices
        made = [slice_of(id_of(5, n), each.tenant, vm=each.vm_uuid, observed=None) for n, each in enumerate(batch)]
        return _json(resources.Slices(slices=made), 200 if query.get("validate_only") == "true" else 201)

    def watch(self, query: dict[str, str], position: str) -> httpx2.Response:
        """Answer one event per connection, which then ends; after the last event, answer that the position is too
        old.
        """
        after = int(position.rpartition("-")[2] or query.get("after", 0))
        event = next((each for each in self.lists["events"] if each.seq > after), None)
        if event is None:
            raise RefusedError(
                Code.WATCH_EXPIRED, "events are no longer kept; read the lists again and watch from now on"
            )
        text = f"id: 0123456789ab-{event.seq}\ndata: {event.model_dump_json()}\n\n"
        return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, text=text)

    def name_of(self, kind: str, item: Any) -> str:
        by_id = kind in ("operations", "slices", "reservations", "tokens", "gpus")
        return str(item.tenant if kind == "quotas" else item.id if by_id else item.name)

    def one(self, kind: str, name: str) -> Any:
        for item in self.lists[kind]:
            if kind != "events" and self.name_of(kind, item) == name:
                return item
        raise RefusedError(Code.OBJECT_UNKNOWN, f"there is no {kind[:-1]} {name}; GET /v1/{kind} lists them")

    def listed(self, kind: str, query: dict[str, str]) -> httpx2.Response:
        items = self.lists[kind]
        for option in (
            "tenant",
            "host",
            "vm_uuid",
            "state",
            "actor",
            "kind",
            "target",
            "account",
            "mode",
            "role",
            "external_id",
        ):
            if option in query:
                items = [item for item in items if str(getattr(item, option)) == query[option]]
        if kind == "events":
            items = [item for item in items if item.seq > int(query.get("after", 0))]
            more = str(items[PAGE - 1].seq) if len(items) > PAGE else ""
            return _json({"items": [_dump(item) for item in items[:PAGE]], "next_page_token": more})
        return _page(items, query)

    def read(self, kind: str, name: str) -> httpx2.Response:
        found = self.one(kind, name)
        if kind == "slices" and found.state == "releasing":
            self.releasing_polls -= 1
            if self.releasing_polls < 0:
                self.lists[kind].remove(found)
        if kind == "operations" and not found.done:
            self.running_polls -= 1
            if self.running_polls < 0:
                return _json(operation_of(found.id, "succeeded"))
        return _json(found)

    def create(self, kind: str, request: httpx2.Request, query: dict[str, str]) -> httpx2.Response:
        assert request.headers["Idempotency-Key"]
        assert request.headers["Content-Type"] == "application/json"
        body = json.loads(request.content)
        made: BaseModel
        if kind == "slices":
            create = resources.SliceCreate.model_validate(body)
            of_it = {"profile": create.profile, "workload": create.workload}
            made = slice_of(SLICES[0], create.tenant, vm=create.vm_uuid, observed=None, **of_it)
            return _json(made, 200 if query.get("validate_only") == "true" else 201)
        if kind == "reservations":
            wanted = resources.ReservationCreate.model_validate(body)
            left = {"places": wanted.places, "places_left": wanted.places, "tenant": wanted.tenant}
            return _json(self.lists[kind][0].model_copy(update=left), 201)
        if any(self.name_of(kind, item) == body.get("name") for item in self.lists[kind]):
            raise RefusedError(Code.OBJECT_EXISTS, f"{body['name']} exists; choose another name")
        if kind == "tenants":
            create_tenant = resources.TenantCreate.model_validate(body)
            parent = create_tenant.account
            made = resources.Tenant(
                id=id_of(1, 9),
                name=body["name"],
                kind=resources.TenantKind.PROJECT if parent else resources.TenantKind.ACCOUNT,
                account=parent,
                generation=1,
                created_at=MADE,
                external_id=create_tenant.external_id,
            )
        elif kind == "profiles":
            wanted = resources.ProfileCreate.model_validate(body)
            made = resources.Profile(id=id_of(2, 9), **wanted.model_dump(), generation=1, created_at=MADE)
        elif kind == "hosts":
            described = self.one("hosts", "gpu-b").model_dump() | resources.HostCreate.model_validate(body).model_dump()
            made = resources.HostCreated(**described, enroll_token="vge_once")
        else:
            token = resources.TokenCreate.model_validate(body)
            expires = MADE + timedelta(seconds=token.expires_in_s) if token.expires_in_s else None
            made = resources.TokenCreated(
                id=TOKENS[0],
                role=token.role,
                subject=token.subject,
                created_at=MADE,
                expires_at=expires,
                secret="vgt_once",
            )
        return _json(made, 201)

    def matched(self, kind: str, name: str, request: httpx2.Request, *, needed: bool) -> Any:
        found = self.one(kind, name)
        given = request.headers.get("If-Match")
        if given is None and needed:
            raise RefusedError(Code.GENERATION_REQUIRED, "send If-Match")
        if given is not None and given not in (etag(found), f'"{found.generation}"'):
            raise RefusedError(
                Code.GENERATION_STALE, f"it has generation {found.generation} by now; read it again and decide anew"
            )
        return found

    def patch(self, kind: str, name: str, request: httpx2.Request) -> httpx2.Response:
        assert request.headers["Content-Type"] == "application/merge-patch+json"
        found = self.matched(kind, name, request, needed=True)
        said, before = json.loads(request.content), _dump(found)
        if "labels" in said:
            merged = before["labels"] | said["labels"]
            said["labels"] = {key: value for key, value in merged.items() if value is not None}
        content = before | said | {"generation": found.generation + 1}
        changed = type(found).model_validate(content)
        self.lists[kind][self.lists[kind].index(found)] = changed
        return _json(changed)

    def delete(self, kind: str, name: str, request: httpx2.Request) -> httpx2.Response:
        needed = kind in ("quotas", "profiles", "hosts")
        found = self.one(kind, name) if kind == "tokens" else self.matched(kind, name, request, needed=needed)
        if kind != "slices":
            self.lists[kind].remove(found)
            return httpx2.Response(204)
        releasing = found.model_copy(update={"state": resources.SliceState.RELEASING})
        self.lists[kind][self.lists[kind].index(found)] = releasing
        return _json(releasing, 202)


def etag(found: Any) -> str:
    return f'"{found.generation}-{0:016x}"'


def _dump(model: BaseModel) -> Any:
    return model.model_dump(mode="json")


def _json(content: Any, status: int = 200) -> httpx2.Response:
    headers = {"ETag": etag(content)} if hasattr(content, "generation") else {}
    return httpx2.Response(status, headers=headers, json=_dump(content) if isinstance(content, BaseModel) else content)


def _page(items: list[Any], query: dict[str, str]) -> httpx2.Response:
    start = int(query.get("page_token", "0"))
    more = str(start + PAGE) if len(items) > start + PAGE else ""
    return _json({"items": [_dump(item) for item in items[start : start + PAGE]], "next_page_token": more})


def _as_csv(found: list[Any], kind: type[BaseModel]) -> httpx2.Response:
    lines = [",".join(kind.model_fields), *(",".join(map(str, _dump(row).values())) for row in found)]
    return httpx2.Response(200, headers={"Content-Type": "text/csv"}, text="".join(f"{line}\r\n" for line in lines))


def _problem(problem: Problem) -> httpx2.Response:
    headers = {"Content-Type": MEDIA_TYPE}
    return httpx2.Response(problem.status, headers=headers, content=problem.model_dump_json().encode())
