# SPDX-License-Identifier: Apache-2.0
"""The first content of the API in memory: two hosts, an account with two projects, three slices and their records."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from vgpumgr.wire import operations, resources
from vgpumgr.wire.audit import AuditEntry
from vgpumgr.wire.common import Mode
from vgpumgr.wire.usage import LedgerRow, UnbookedReason, UnbookedRow

MADE = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)

VM = UUID("aaaaaaaa-0000-4000-8000-00000000000a")
OTHER_VM = UUID("bbbbbbbb-0000-4000-8000-00000000000b")
SLICES = [UUID(f"51ce0000-0000-4000-8000-00000000000{n}") for n in range(1, 4)]
OPERATIONS = [UUID(f"09e60000-0000-4000-8000-00000000000{n}") for n in range(1, 3)]
TOKENS = [UUID(f"70ce0000-0000-4000-8000-00000000000{n}") for n in range(1, 3)]
RESERVATION = UUID("4e5e0000-0000-4000-8000-000000000001")
EPOCH = UUID("e90c0000-0000-4000-8000-000000000001")
GPU = "0000:00:10.0"


def id_of(kind: int, number: int) -> UUID:
    return UUID(f"{kind:08x}-0000-4000-8000-{number:012x}")


GPUS = [id_of(4, n) for n in (1, 2)]


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
        "gpu_id": id_of(4, 1),
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
            "scope": "tenant",
            "semantics": "weight",
            "enforced_by": "kernel",
            "mem_enforced_by": "kernel",
        },
        "observed": {
            "present": True,
            "open": True,
            "run_ns": 5_000_000,
            "items": 17,
            "executor": {"state": "failed", "restarts": 2, "reason": "it was killed by SIGKILL"},
            "reported_at": MADE,
        },
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
        "request": {"deadline_s": 86400, "then": "cordoned", "labels": {}},
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


def ledger_of(tenant: str, **more: Any) -> LedgerRow:
    members: dict[str, Any] = {
        "since": MADE - timedelta(hours=24),
        "until": MADE,
        "account": "acme",
        "account_id": id_of(1, 0),
        "tenant": tenant,
        "tenant_id": id_of(1, 1),
        "host": "",
        "gpu": "",
        "correction": False,
        "closed": True,
        "slice_us": 24 * 3_600_000_000,
        "releasing_us": 0,
        "granted_ns": 250 * 86_400_000_000,
        "mem_byte_us": (64 << 20) * 86_400_000_000,
        "run_ns": 20_000_000_001,
        "due_ns": 20_000_500_000,
        "assured_ns": 250 * 86_400_000_000,
        "throttled_ns": 0,
        "reserved_ns": 0,
    }
    return LedgerRow.model_validate(members | more)


def unbooked_of(tenant: str) -> UnbookedRow:
    return UnbookedRow(
        since=MADE,
        host="gpu-a",
        gpu=GPU,
        tenant=tenant,
        reason=UnbookedReason.UNATTRIBUTED,
        run_ns=20_000_000_001,
        due_ns=-1_500_000,
        assured_ns=0,
        throttled_ns=0,
        reserved_ns=0,
    )


def contents() -> dict[str, list[Any]]:
    """Return every list of the API, by its name in paths."""
    return {
        "tenants": [
            resources.Tenant(
                id=id_of(1, n),
                name=name,
                kind=kind,
                account=account,
                generation=1,
                created_at=MADE,
                external_id=external_id,
            )
            for n, (name, kind, account, external_id) in enumerate(
                [
                    ("acme", resources.TenantKind.ACCOUNT, None, None),
                    ("blue", resources.TenantKind.PROJECT, "acme", "acme_blue"),
                    ("green", resources.TenantKind.PROJECT, "acme", None),
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
                id=id_of(2, 1),
                name="quarter",
                share_permille=250,
                mem_bytes=64 << 20,
                mode=Mode.FAIR,
                generation=1,
                created_at=MADE,
            ),
            resources.Profile(
                id=id_of(2, 2),
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
                id=id_of(3, 1),
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
                unknown_slices=1,
                refusals=[f"slice {id_of(5, 9)} is no longer named and has no tombstone: kept until its lease ends"],
                generation=4,
                created_at=MADE,
            ),
            resources.Host(
                id=id_of(3, 2),
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
                id=GPUS[n - 1],
                host=host,
                address=GPU,
                engine="soft" if n == 1 else "lease",
                driver="vgpumgr" if n == 1 else "nvidia",
                adopted=n != 1,
                backend="kmod",
                mem_bytes=1 << 30,
                used_share_permille=750 if n == 1 else 0,
                used_mem_bytes=(192 << 20) if n == 1 else 0,
                types=[resources.MemoryClass(id=f"vgpumgr-mem{m}m", mem_bytes=m << 20) for m in (16, 64)],
                timeslice_min_us=100,
                present=n == 1,
                fair_ratio_permille=1000 if n == 1 else 1500,
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
