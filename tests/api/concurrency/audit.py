# SPDX-License-Identifier: Apache-2.0
"""Queries to the database itself, in independent SQL: nothing here uses the API's code."""

import contextlib
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

ENDS = ("slice.bound", "slice.releasing", "slice.lost")
CHANGES = (*ENDS, "slice.moved", "slice.arrived")
"""The events that can change a claim; each makes a new generation. A move can be aborted and repeated."""
ONCE = ("slice.claimed", *ENDS, "slice.released")
PROGRESS = {
    "claimed": ("claimed", "prepared", "attached", "failed", "orphaned"),
    "releasing": ("releasing", "orphaned"),
    "lost": ("lost",),
}
"""The possible progress of a slice, by the state of its claim."""

COUNTED = "(s.share_permille * 1000 + s.fair_ratio_permille - 1) / s.fair_ratio_permille"
"""What a slice counts on its GPU: its share, or less where fair shares are over-committed."""


@dataclass(frozen=True)
class Row:
    """One slice as stored."""

    id: UUID
    tenant: str
    host: str
    gpu: UUID
    vm_uuid: UUID | None
    share_permille: int
    state: str


class Audit:
    """Reads a database of either engine; each query is a transaction."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: sqlite3.Connection | psycopg.Connection[Any] | None = None

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Returns all rows."""
        match self._connection:
            case None:
                with self.connected():
                    return self.ask(sql)
            case sqlite3.Connection() as file:
                return file.execute(sql).fetchall()
            case server:
                return server.execute(sql.encode()).fetchall()

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Uses one connection for all queries of the block: opening a connection costs PostgreSQL more than most
        queries.
        """
        if self._url.startswith("sqlite"):
            self._connection = sqlite3.connect(self._url.removeprefix("sqlite:///"))
        else:
            self._connection = psycopg.connect(self._url, autocommit=True)
        try:
            yield
        finally:
            self._connection.close()
            self._connection = None

    def violations(self, *, quotas_may_be_cut: bool = False) -> list[str]:
        """Returns the violations of everything that must always hold; empty if all is well."""
        with self.connected():
            return [
                *self.sums(quotas_may_be_cut=quotas_may_be_cut),
                *self._ties(),
                *self._keys(),
                *self._events(),
                *self._tombstones(),
                *self.fenced(),
                *self._progress(),
                *self._operations(),
            ]

    def sums(self, *, quotas_may_be_cut: bool = False) -> list[str]:
        """Compares the sums at GPUs and quotas with their claims; a part of `violations`."""
        return [*self._gpus(), *self._quotas(cut=quotas_may_be_cut)]

    def fenced(self) -> list[str]:
        """Returns what hosts that were declared dead must not have; a part of `violations`."""
        return [
            f"fenced host {name} has {what}"
            for what, table, condition in (
                ("a token", "tokens x ON x.host_id = h.id", "TRUE"),
                ("a GPU that is present", "gpus x ON x.host_id = h.id", "x.present"),
                (
                    "a slice that is not lost",
                    "gpus g ON g.host_id = h.id JOIN slices x ON x.gpu_id = g.id",
                    "x.state <> 'lost'",
                ),
            )
            for (name,) in self.ask(
                f"SELECT h.name FROM hosts h JOIN {table} WHERE h.fenced_at IS NOT NULL AND {condition}"
            )
        ]

    def slices(self) -> dict[UUID, Row]:
        """Every claim and tombstone."""
        rows = self.ask(
            "SELECT s.id, t.name, h.name, s.gpu_id, s.vm_uuid, s.share_permille, s.state FROM slices s"
            " JOIN tenants t ON t.id = s.tenant_id JOIN gpus g ON g.id = s.gpu_id JOIN hosts h ON h.id = g.host_id"
        )
        return {
            _uuid(row[0]): Row(
                _uuid(row[0]), row[1], row[2], _uuid(row[3]), _uuid(row[4]) if row[4] else None, row[5], row[6]
            )
            for row in rows
        }

    def events(self) -> list[tuple[int | None, str, str, str | None, dict[str, Any]]]:
        """Returns (seq, kind, object, tenant, detail) of every event, in the order of `seq`."""
        rows = self.ask("SELECT seq, kind, object, tenant, detail FROM events ORDER BY seq")
        return [(*row[:4], json.loads(row[4]) if isinstance(row[4], str) else row[4]) for row in rows]

    def _gpus(self) -> list[str]:
        found = []
        places = (
            "(SELECT gpu_id, share_permille, fair_ratio_permille, type_mem_bytes, reserved_permille FROM slices"
            " UNION ALL"
            " SELECT gpu_id, share_permille, fair_ratio_permille, type_mem_bytes, reserved_permille FROM holds) s"
        )
        for address, share_used, mem_used, mem_bytes, share, mem, reserves, reserved in self.ask(
            "SELECT h.name || '/' || g.address, g.share_used, g.mem_used, g.mem_bytes,"
            f" (SELECT COALESCE(SUM({COUNTED}), 0) FROM {places} WHERE s.gpu_id = g.id),"
            f" (SELECT COALESCE(SUM(s.type_mem_bytes), 0) FROM {places} WHERE s.gpu_id = g.id), g.reserved_permille,"
            f" (SELECT COALESCE(SUM(s.reserved_permille), 0) FROM {places} WHERE s.gpu_id = g.id)"
            " FROM gpus g JOIN hosts h ON h.id = g.host_id"
        ):
            if reserves != reserved:
                found.append(f"GPU {address} says that {reserves} is reserved, its claims add up to {reserved}")
            if share > 1000 or mem > mem_bytes:
                found.append(f"GPU {address} is over: {share} permille, {mem} of {mem_bytes} bytes")
            if (share_used, mem_used) != (share, mem):
                found.append(f"GPU {address} says {share_used, mem_used}, its claims add up to {share, mem}")
        return found

    def _ties(self) -> list[str]:
        """Returns pairs of a tenant's slices that break an affinity or an anti-affinity."""
        pairs = (
            "SELECT s.id, o.id FROM slices s JOIN slices o ON o.tenant_id = s.tenant_id AND o.id > s.id"
            " JOIN gpus g ON g.id = s.gpu_id JOIN gpus og ON og.id = o.gpu_id WHERE "
        )
        on_gpu, on_host = "s.gpu_id = o.gpu_id", "g.host_id = og.host_id"
        asked = "'host' IN (s.anti_affinity_level, o.anti_affinity_level)"
        apart = f"s.anti_affinity = o.anti_affinity AND ({on_gpu} OR ({on_host} AND {asked}))"
        alive = "s.state <> 'lost' AND o.state <> 'lost'"
        asked = "'gpu' IN (s.affinity_level, o.affinity_level)"
        together = f"s.affinity = o.affinity AND NOT ({on_host} AND ({on_gpu} OR NOT {asked}))"
        both = "s.state = 'claimed' AND o.state = 'claimed'"
        return [
            f"slices {_uuid(one)} and {_uuid(other)} are {what}"
            for what, condition in (
                ("together", f"{apart} AND {alive}"),
                ("apart", f"{together} AND {both}"),
            )
            for one, other in self.ask(pairs + condition)
        ]

    def _quotas(self, *, cut: bool) -> list[str]:
        found = []
        for name, *numbers in self.ask(
            "SELECT o.name, q.share_limit, q.mem_limit, q.slices_limit, q.share_used, q.mem_used, q.slices_used,"
            " COALESCE(SUM(s.share_permille), 0), COALESCE(SUM(s.mem_bytes), 0), COUNT(s.id)"
            " FROM quotas q JOIN tenants o ON o.id = q.tenant_id"
            " LEFT JOIN tenants t ON t.id = o.id OR t.account_id = o.id"
            " LEFT JOIN (SELECT id, tenant_id, share_permille, mem_bytes FROM slices WHERE state <> 'lost' UNION ALL"
            " SELECT h.id, r.tenant_id, h.share_permille, h.mem_bytes FROM holds h"
            " JOIN reservations r ON r.id = h.reservation_id) s ON s.tenant_id = t.id"
            " GROUP BY o.name, q.share_limit, q.mem_limit, q.slices_limit, q.share_used, q.mem_used, q.slices_used"
        ):
            limits, used, claimed = numbers[:3], numbers[3:6], [int(number) for number in numbers[6:]]
            if used != claimed:
                found.append(f"quota of {name} says {used}, its claims add up to {claimed}")
            if not cut and any(have > limit for have, limit in zip(claimed, limits, strict=True)):
                found.append(f"quota of {name} is over: {claimed} of {limits}")
        return found

    def _keys(self) -> list[str]:
        answers = [
            json.loads(answer) if answer else None for (answer,) in self.ask("SELECT answer FROM idempotency_keys")
        ]
        found = [f"{answers.count(None)} idempotency keys without an answer"] if None in answers else []
        named = Counter(each["id"] for answer in answers if answer for each in answer.get("slices", [answer]))
        found += [f"{count} idempotency keys made {name}" for name, count in named.items() if count > 1]
        lost = self._lost()
        made = Counter(
            detail["vm_uuid"]
            for _, kind, subject, _, detail in self.events()
            if kind == "slice.claimed" and subject not in lost
        )
        return found + [f"{count} claims for VM {vm}" for vm, count in made.items() if vm is not None and count > 1]

    def _lost(self) -> set[str]:
        """Slices were lost with their hosts, or continued elsewhere, unless they came back from there."""
        lost = set()
        rows = self.ask("SELECT kind, object FROM events ORDER BY id")
        for kind, subject in rows:
            if kind in ("slice.lost", "slice.moved"):
                lost.add(subject)
            elif kind == "slice.arrived":
                lost.discard(subject)
        return lost

    def _events(self) -> list[str]:
        events = self.events()
        numbers = [seq for seq, *_ in events if seq is not None]
        found = [] if numbers == list(range(1, len(numbers) + 1)) else ["events are not numbered 1, 2, 3 and so on"]
        kinds = Counter(kind for _, kind, *_ in events)
        states = Counter(row.state for row in self.slices().values())
        if kinds["slice.claimed"] - kinds["slice.released"] != states.total():
            found.append(f"{kinds} do not explain {states.total()} slices")
        told: defaultdict[str, set[str]] = defaultdict(set)
        for _, kind, subject, *_ in events:
            told[kind].add(subject)
        ended = told["slice.released"]
        lost = self._lost()
        for state, those in (("releasing", told["slice.releasing"] - lost - ended), ("lost", lost - ended)):
            if those != {str(row.id) for row in self.slices().values() if row.state == state}:
                found.append(f"{kinds} do not explain {states[state]} slices that are {state}")
        found += [f"{one} ended without a tombstone" for one in ended - told["slice.releasing"] - lost]
        changes = Counter(subject for _, kind, subject, *_ in events if kind in CHANGES)
        found += [
            f"slice {_uuid(one)} of generation {generation} changed {changes[str(_uuid(one))]} times"
            for one, generation in self.ask("SELECT id, generation FROM slices")
            if generation != 1 + changes[str(_uuid(one))]
        ]
        once = Counter((kind, subject) for _, kind, subject, *_ in events if kind in ONCE)
        return found + [f"{kind} {subject} {count} times" for (kind, subject), count in once.items() if count > 1]

    def _tombstones(self) -> list[str]:
        return [
            f"tombstone {_uuid(slice_id)} of generation {tombstone} on a host at {generation}"
            for slice_id, tombstone, generation in self.ask(
                "SELECT s.id, s.tombstone_generation, h.desired_generation FROM slices s"
                " JOIN gpus g ON g.id = s.gpu_id JOIN hosts h ON h.id = g.host_id"
                " WHERE s.state <> 'claimed' AND s.tombstone_generation > h.desired_generation"
            )
        ]

    def _progress(self) -> list[str]:
        """A slice without any report has no row in slice_progress; a deleted or lost slice has one."""
        return [
            f"slice {_uuid(slice_id)}: its claim is {state}, it is {progress}"
            for slice_id, state, progress in self.ask(
                "SELECT s.id, s.state, p.state FROM slices s LEFT JOIN slice_progress p ON p.slice_id = s.id"
            )
            if progress not in PROGRESS[state] and (progress, state) != (None, "claimed")
        ]

    def _operations(self) -> list[str]:
        """A host is draining if and only if an operation drains it. Each operation ended once, with one event."""
        draining = {_uuid(one) for (one,) in self.ask("SELECT id FROM hosts WHERE cordoned_for = 'draining'")}
        rows = self.ask("SELECT id, kind, target_id, state FROM operations")
        there = {_uuid(one) for (one,) in self.ask("SELECT id FROM hosts")}
        running = [_uuid(row[2]) for row in rows if row[1] == "host.drain" and row[3] == "running"]
        found = [f"hosts {draining} are draining, operations drain {running}"] * (
            sorted(draining) != sorted(each for each in running if each in there)
        )
        told: defaultdict[str, list[str]] = defaultdict(list)
        for _, kind, subject, *_ in self.events():
            if kind.startswith("operation."):
                told[subject].append(kind.removeprefix("operation."))
        for operation_id, _, _, state in rows:
            expected = ["started"] if state == "running" else ["started", state]
            if sorted(told[str(_uuid(operation_id))]) != sorted(expected):
                found.append(f"operation {_uuid(operation_id)} is {state}, its events {told[str(_uuid(operation_id))]}")
        return found


def _uuid(value: object) -> UUID:
    """SQLite stores a UUID as 32 hexadecimal digits."""
    return value if isinstance(value, UUID) else UUID(str(value))
