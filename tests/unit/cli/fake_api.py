# SPDX-License-Identifier: Apache-2.0
"""An API in memory, behind httpx2.MockTransport: the routes, pages of two, generations, and failures on demand."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

import httpx2
from pydantic import BaseModel

from vgpumgr.wire import fleet, operations, resources
from vgpumgr.wire.audit import AuditEntry
from vgpumgr.wire.common import Mode
from vgpumgr.wire.problem import MEDIA_TYPE, STATUS, Code, Problem, Reason

TOKEN = "vgt_secret-of-the-operator"
MADE = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
PAGE = 2

VM = UUID("aaaaaaaa-0000-4000-8000-00000000000a")
OTHER_VM = UUID("bbbbbbbb-0000-4000-8000-00000000000b")
SLICES = [UUID(f"51ce0000-0000-4000-8000-00000000000{n}") for n in range(1, 4)]
OPERATIONS = [UUID(f"09e60000-0000-4000-8000-00000000000{n}") for n in range(1, 3)]
TOKENS = [UUID(f"70ce0000-0000-4000-8000-00000000000{n}") for n in range(1, 3)]
RESERVATION = UUID("4e5e0000-0000-4000-8000-000000000001")
EPOCH = UUID("e90c0000-0000-4000-8000-000000000001")
GPU = "0000:00:10.0"


def _id(kind: int, number: int) -> UUID:
    return UUID(f"{kind:08x}-0000-4000-8000-{number:012x}")


class RefusedError(Exception):
    """Becomes a problem document."""

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


def slice_of(slice_id: UUID, tenant: str, *, vm: UUID | None, state: str = "claimed", **more: Any) -> resources.Slice:
    members: dict[str, Any] = {
        "id": slice_id,
        "tenant": tenant,
        "profile": "quarter",
        "share_permille": 250,
        "mem_bytes": 64 << 20,
        "mode": "fair",
        "vm_uuid": vm,
        "host": "gpu-a",
        "gpu": GPU,
        "gpu_id": _id(4, 1),
        "mdev_type": "vgpumgr-mem64m",
        "state": state,
        "state_since": MADE,
        "state_reason": "",
        "state_detail": "",
        "enforcement": {
            "requested_permille": 250,
            "applied_permille": 125,
            "timeslice_us": 2000,
            "granularity_us": 2500,
            "semantics": "weight",
        },
        "observed": {"present": True, "open": True, "run_ns": 5_000_000, "items": 17, "reported_at": MADE},
        "generation": 3,
        "created_at": MADE,
    }
    return resources.Slice.model_validate(members | more)


def operation_of(operation_id: UUID, state: str = "running", **more: Any) -> operations.Operation:
    done = state != "running"
    waiting = {"slice": str(SLICES[0]), "tenant": "blue", "vm_uuid": str(VM), "state": "attached"}
    members: dict[str, Any] = {
        "id": operation_id,
        "kind": "host.drain",
        "target": "gpu-a",
        "state": state,
        "done": done,
        "progress": {"total": 3, "left": 0 if state == "succeeded" else 1, "waiting_for": [] if done else [waiting]},
        "request": {"deadline_s": 86400, "then": "cordoned"},
        "result": {"drained": 3, "unknown_slices": 0} if state == "succeeded" else None,
        "error": None,
        "actor": "operator:root",
        "generation": 2,
        "created_at": MADE,
        "deadline_at": MADE + timedelta(days=1),
        "done_at": MADE if done else None,
        "expires_at": MADE + timedelta(days=7) if done else None,
    }
    return operations.Operation.model_validate(members | more)


def usage_of(tenant: str, gpu: str = GPU, **counters: Any) -> resources.Usage:
    members: dict[str, Any] = {
        "host": "gpu-a",
        "gpu": gpu,
        "tenant": tenant,
        "weight": 100,
        "timeslice_us": 2000,
        "cap_us": 0,
        "cap_period_us": 0,
        "run_ns": 0,
        "runs": 0,
        "longest_run_ns": 2_100_000,
        "throttled_ns": 0,
        "switches": 0,
        "wall_ns": 0,
        "idle_ns": 0,
        "reported_at": MADE,
    }
    return resources.Usage.model_validate(members | counters)


@dataclass
class FakeApi:
    """`requests`: what came. `answers`: given instead of the routes' own, the first one first."""

    requests: list[httpx2.Request] = field(default_factory=list)
    answers: list[Callable[[httpx2.Request], httpx2.Response]] = field(default_factory=list)
    lists: dict[str, list[Any]] = field(default_factory=dict)
    usage: list[list[resources.Usage]] = field(default_factory=list)
    current_usage: list[resources.Usage] = field(default_factory=list)
    releasing_polls: int = 2
    running_polls: int = 1

    def __post_init__(self) -> None:
        self.lists = {
            "tenants": [
                resources.Tenant(id=_id(1, n), name=name, kind=kind, account=account, generation=1, created_at=MADE)
                for n, (name, kind, account) in enumerate(
                    [
                        ("acme", resources.TenantKind.ACCOUNT, None),
                        ("blue", resources.TenantKind.PROJECT, "acme"),
                        ("green", resources.TenantKind.PROJECT, "acme"),
                    ]
                )
            ],
            "quotas": [
                resources.Quota(
                    tenant=name,
                    share_permille=1000,
                    mem_bytes=1 << 30,
                    slices=10,
                    timeslice_us=2000,
                    used_share_permille=used,
                    used_mem_bytes=used * (64 << 20) // 250,
                    used_slices=used // 250,
                    generation=7,
                )
                for name, used in (("acme", 750), ("blue", 500), ("green", 250))
            ],
            "profiles": [
                resources.Profile(
                    id=_id(2, 1),
                    name="quarter",
                    share_permille=250,
                    mem_bytes=64 << 20,
                    mode=Mode.FAIR,
                    generation=1,
                    created_at=MADE,
                ),
                resources.Profile(
                    id=_id(2, 2),
                    name="sliver",
                    share_permille=5,
                    mem_bytes=(1 << 20) + 512,
                    mode=Mode.STRICT,
                    generation=1,
                    created_at=MADE,
                ),
            ],
            "hosts": [
                resources.Host(
                    id=_id(3, 1),
                    name="gpu-a",
                    state=resources.HostState.READY,
                    operator_state=resources.HostState.READY,
                    enrolled=True,
                    online=True,
                    epoch_confirmed=True,
                    fenced_at=None,
                    lost_at=None,
                    last_report_at=MADE + timedelta(seconds=30),
                    agent_version="0.1.0",
                    generation=4,
                    created_at=MADE,
                ),
                resources.Host(
                    id=_id(3, 2),
                    name="gpu-b",
                    state=resources.HostState.CORDONED,
                    operator_state=resources.HostState.CORDONED,
                    enrolled=False,
                    online=False,
                    epoch_confirmed=False,
                    fenced_at=None,
                    lost_at=None,
                    last_report_at=None,
                    agent_version="",
                    generation=1,
                    created_at=MADE,
                ),
            ],
            "gpus": [
                resources.Gpu(
                    id=_id(4, n),
                    host=host,
                    address=GPU,
                    engine="soft",
                    backend="kmod",
                    mem_bytes=1 << 30,
                    used_share_permille=750 if n == 1 else 0,
                    used_mem_bytes=(192 << 20) if n == 1 else 0,
                    types=[resources.MemoryClass(id=f"vgpumgr-mem{m}m", mem_bytes=m << 20) for m in (16, 64)],
                    timeslice_min_us=100,
                    present=n == 1,
                )
                for n, host in ((1, "gpu-a"), (2, "gpu-b"))
            ],
            "slices": [
                slice_of(SLICES[0], "blue", vm=VM),
                slice_of(SLICES[1], "blue", vm=None, observed=None),
                slice_of(SLICES[2], "green", vm=OTHER_VM, state="releasing"),
            ],
            "operations": [
                operation_of(OPERATIONS[0]),
                operation_of(
                    OPERATIONS[1], "failed", error={"code": "operation.deadline", "detail": "1 are left after 60 s"}
                ),
            ],
            "reservations": [
                resources.Reservation(
                    id=RESERVATION,
                    tenant="blue",
                    profile="quarter",
                    places=4,
                    places_left=3,
                    expires_at=MADE + timedelta(hours=2),
                    generation=1,
                    created_at=MADE,
                )
            ],
            "tokens": [
                resources.Token(
                    id=TOKENS[0], role=resources.TokenRole.OPERATOR, subject=None, created_at=MADE, expires_at=None
                ),
                resources.Token(
                    id=TOKENS[1],
                    role=resources.TokenRole.TENANT,
                    subject="blue",
                    created_at=MADE,
                    expires_at=MADE + timedelta(days=30),
                    scopes=["slices:read", "slices:write"],
                ),
            ],
            "events": [
                resources.Event(seq=seq, at=MADE, kind=kind, actor="operator", tenant=tenant, object=thing, detail={})
                for seq, kind, tenant, thing in (
                    (3, "tenant.created", "blue", "tenant/blue"),
                    (5, "slice.claimed", "blue", f"slice/{SLICES[0]}"),
                    (6, "host.enrolled", None, "host/gpu-a"),
                )
            ],
            "audit": [
                AuditEntry(
                    id=number,
                    at=MADE,
                    action=action,
                    actor=actor,
                    role=actor.partition(":")[0],
                    credential=TOKENS[0],
                    source=source,
                    request_id=f"req-{number}",
                    tenant=tenant,
                    object=thing,
                    generation=generation,
                    detail={},
                )
                for number, action, actor, source, tenant, thing, generation in (
                    (1, "tenant.created", "operator:root", "10.0.0.9", "blue", "blue", 1),
                    (2, "slice.claimed", "tenant:blue", "10.0.0.7", "blue", str(SLICES[0]), 1),
                    (4, "gpu.found", "host:gpu-a", "", None, f"gpu-a/{GPU}", None),
                )
            ],
        }

    @property
    def transport(self) -> httpx2.MockTransport:
        return httpx2.MockTransport(self.handle)

    def seen(self) -> list[str]:
        """Method and path of every request."""
        return [f"{request.method} {request.url.raw_path.decode()}" for request in self.requests]

    def refuse(self, code: Code, detail: str, *reasons: Reason, times: int = 1) -> None:
        """Answer the next requests with a problem."""
        problem = RefusedError(code, detail, reasons).problem
        self.answers += [lambda _: _problem(problem)] * times

    def fail(self, error: type[BaseException], text: str = "gone", *, times: int = 1) -> None:
        """Let the next requests end in the transport."""

        def raise_it(request: httpx2.Request) -> httpx2.Response:
            raise error(text)

        self.answers += [raise_it] * times

    def answer(self, status: int, content: str) -> None:
        """Answer the next request with this."""
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
            return _json(fleet.Enrolled(host_id=_id(3, 1), name="gpu-a", token="vgt_host"))
        if path == "/v1/usage":
            if "page_token" not in query:
                self.current_usage = self.usage.pop(0) if len(self.usage) > 1 else self.usage[0]
            return _page(self.current_usage, query)
        match = re.fullmatch(r"/v1/([a-z]+)(?:/([^:/]+))?(?::([a-z-]+))?", path)
        if match is None or match[1] not in self.lists:
            raise RefusedError(Code.ROUTE_UNKNOWN, "no such path; GET /openapi.json lists them")
        kind, name, verb = match.groups()
        if verb:
            found = self.one(kind, name)
            if kind == "operations":
                operations.OperationCancel.model_validate_json(request.content)
                return _json(operation_of(found.id, "cancelled"))
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
        for option in ("tenant", "host", "vm_uuid", "state", "actor", "kind", "target"):
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
            made = slice_of(SLICES[0], create.tenant, vm=create.vm_uuid, profile=create.profile, observed=None)
            return _json(made, 200 if query.get("validate_only") == "true" else 201)
        if kind == "reservations":
            wanted = resources.ReservationCreate.model_validate(body)
            left = {"places": wanted.places, "places_left": wanted.places, "tenant": wanted.tenant}
            return _json(self.lists[kind][0].model_copy(update=left), 201)
        if any(self.name_of(kind, item) == body.get("name") for item in self.lists[kind]):
            raise RefusedError(Code.OBJECT_EXISTS, f"{body['name']} exists; choose another name")
        if kind == "tenants":
            parent = resources.TenantCreate.model_validate(body).account
            made = resources.Tenant(
                id=_id(1, 9),
                name=body["name"],
                kind=resources.TenantKind.PROJECT if parent else resources.TenantKind.ACCOUNT,
                account=parent,
                generation=1,
                created_at=MADE,
            )
        elif kind == "profiles":
            wanted = resources.ProfileCreate.model_validate(body)
            made = resources.Profile(id=_id(2, 9), **wanted.model_dump(), generation=1, created_at=MADE)
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
        if given is not None and given != f'"{found.generation}"':
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


def _dump(model: BaseModel) -> Any:
    return model.model_dump(mode="json")


def _json(content: Any, status: int = 200) -> httpx2.Response:
    return httpx2.Response(status, json=_dump(content) if isinstance(content, BaseModel) else content)


def _page(items: list[Any], query: dict[str, str]) -> httpx2.Response:
    start = int(query.get("page_token", "0"))
    more = str(start + PAGE) if len(items) > start + PAGE else ""
    return _json({"items": [_dump(item) for item in items[start : start + PAGE]], "next_page_token": more})


def _problem(problem: Problem) -> httpx2.Response:
    headers = {"Content-Type": MEDIA_TYPE}
    return httpx2.Response(problem.status, headers=headers, content=problem.model_dump_json().encode())
