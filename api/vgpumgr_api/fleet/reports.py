# SPDX-License-Identifier: Apache-2.0
"""Processes a host's report: its inventory, its counters, and the confirmation that a deleted slice is gone.

The confirmation is the only part of a report that ends a grant. So the confirmation counts only if the host worked from
a document of this epoch that already contained the tombstone. Everything else is stored as reported and ends nothing.
"""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import delete, select, union
from sqlalchemy.orm import Session

from vgpumgr.wire.fleet import Report, Reported
from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.resources import SliceState
from vgpumgr_api.actors import Actor, require_unrevoked
from vgpumgr_api.claims import progress
from vgpumgr_api.claims.release import release
from vgpumgr_api.db import models, observations
from vgpumgr_api.db.database import TryAgain, now
from vgpumgr_api.db.statements import change, upsert
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import allowance, events
from vgpumgr_api.fleet import boots, heartbeats
from vgpumgr_api.fleet.boots import Verdict
from vgpumgr_api.fleet.inventory import take_inventory
from vgpumgr_api.installation.installation import UNKNOWN_YET
from vgpumgr_api.resources.generations import bump
from vgpumgr_api.resources.text import printable

REFUSAL_KEPT = 500
"""The maximum length of each of a report's `refusals`, in characters."""


def none_yet(host_id: UUID, *, agent_version: str) -> dict[str, Any]:
    """Returns the report row of a host that has just enrolled.

    `unknown_slices` is not 0, because the host may still have devices from before its enrolment.
    """
    return {
        "host_id": host_id,
        "boot_id": None,
        "agent_epoch": -1,
        "seq": -1,
        "agent_version": printable(agent_version),
        "desired_epoch": None,
        "desired_generation": 0,
        "unknown_slices": UNKNOWN_YET,
        "refusals": [],
        "reported_at": None,
        "lost_at": None,
        "spent_until": None,
        "other_boot_id": None,
        "other_agent_epoch": None,
        "other_seq": None,
        "other_heard_at": None,
        "second_boot_at": None,
    }


def take_in(session: Session, actor: Actor, host: models.Host, report: Report) -> Reported | Refusal:
    """Stores a report of `host` unless it is outdated, and releases slices that it confirms gone.

    Returns a refusal, to be raised after the commit, for a second machine that runs as this host.
    """
    _refuse_repetitions(report)
    last = session.scalars(
        select(observations.HostReport).where(observations.HostReport.host_id == host.id).with_for_update()
    ).one_or_none()
    if last is None:  # the host was deleted since the lookup
        raise TryAgain
    require_unrevoked(session, actor, host)  # the host may have been fenced during the wait for the lock
    verdict = boots.judge(session, actor, host, report, last)
    if verdict is not Verdict.TAKEN:
        session.flush()
        return boots.refusal(host) if verdict is Verdict.REFUSED else Reported(accepted=False)
    allowance.require(session, last)
    before = events.recorded(session)

    deleted = _deleted(session, host, report)
    startable = {one.id for one in report.slices if one.startable}
    absent = {one.id for one in report.slices if not one.present} - startable
    touched = release(session, actor, [one for one in deleted if one in absent])
    if take_inventory(session, actor, host, report.gpus):
        touched.add(host.id)
    here = progress.standings(session, host.id)
    _observe_slices(session, here.keys(), report)
    _observe_groups(session, host, report)
    progress.follow(session, actor, here, report.slices)

    known = last.unknown_slices if last.boot_id is not None else 0  # after an enrolment the number is an assumption
    if last.boot_id is not None and last.boot_id != report.boot_id:
        events.record(session, actor, "host.rebooted", host.name)
    if last.lost_at is not None:
        last.lost_at = None
        events.record(session, actor, "host.returned", host.name)
    last.boot_id = report.boot_id
    last.agent_epoch = report.agent_epoch
    last.seq = report.seq
    last.agent_version = printable(report.agent_version)
    last.desired_epoch = report.desired_epoch
    last.desired_generation = report.desired_generation
    last.unknown_slices = _unknown(session, host, here.keys(), report, before=last.unknown_slices)
    if last.unknown_slices > known or not startable.isdisjoint(deleted):
        touched.add(host.id)  # its document may stem from lost commits whose generation was reused
    last.refusals = [printable(refusal[:REFUSAL_KEPT]) for refusal in report.refusals]
    last.reported_at = heartbeats.heard(session, last.reported_at)
    allowance.spend(session, last, events.recorded(session) - before)
    session.flush()
    bump(session, touched)
    return Reported(accepted=True)


def _refuse_repetitions(report: Report) -> None:
    """Refuses a report that names an object twice: the two entries might contradict each other."""
    lists: dict[str, list[object]] = {
        "gpus": [gpu.address for gpu in report.gpus],
        "groups": [(group.gpu, group.tenant) for group in report.groups],
        "slices": [one.id for one in report.slices],
    }
    for number, gpu in enumerate(report.gpus):
        lists[f"gpus[{number}].types"] = [kind.id for kind in gpu.types]
    for field, keys in lists.items():
        if len(set(keys)) < len(keys):
            detail = f"{field} names one of its objects twice; report each once"
            raise Refusal(
                Code.FIELD_INVALID,
                detail,
                reasons=(Reason(code=Code.FIELD_INVALID, detail=detail, field=f"$.{field}"),),
            )


def _deleted(session: Session, host: models.Host, report: Report) -> Sequence[UUID]:
    """Returns the tombstones of this host that the report completes if it says that their slices are absent.

    A report of a later generation than the database's comes from before an undeclared restore, and proves nothing.
    Neither does a report that calls the slice startable: the host's document has the same generation as the one with
    the tombstone, but different content.
    """
    if not report.slices:
        return []
    return session.scalars(
        select(models.Slice.id)
        .join(models.Gpu, models.Gpu.id == models.Slice.gpu_id)
        .join(models.Host, models.Host.id == models.Gpu.host_id)
        .where(
            models.Host.id == host.id,
            models.Host.epoch_confirmed,
            models.Host.desired_generation >= report.desired_generation,
            models.Slice.state != SliceState.CLAIMED.value,
            models.Slice.tombstone_generation <= report.desired_generation,
            select(models.Installation.epoch).scalar_subquery() == report.desired_epoch,
        )
    ).all()


def _unknown(session: Session, host: models.Host, here: Collection[UUID], report: Report, *, before: int) -> int:
    """Returns how many slices a host has, or may start, that are not claims on it. `before`: the number so far.

    If the host has applied no document of this epoch, for example because it has not examined its devices yet, the
    number is not lowered. If the host's document is later than any here, the database has lost commits, so the number
    is unknown and at least 1.
    """
    found = sum((one.present or one.startable) and one.id not in here for one in report.slices)
    epoch = session.scalars(select(models.Installation.epoch)).one()
    if report.desired_epoch != epoch:
        return max(found, before)
    return found if report.desired_generation <= host.desired_generation else max(found, UNKNOWN_YET)


def _observe_slices(session: Session, here: Collection[UUID], report: Report) -> None:
    """Stores what was reported of slices that are claimed here. Of other slices only their number matters."""
    upsert(
        session,
        observations.SliceObservation,
        [
            {
                "slice_id": one.id,
                "generation": one.generation,
                "present": one.present,
                "open": one.open,
                "vm_uuid": one.vm_uuid,
                "applied_permille": one.applied_permille,
                "run_ns": one.run_ns,
                "items": one.items,
                "error": printable(one.error),
                "executor_state": one.executor.state.value,
                "executor_restarts": one.executor.restarts,
                "executor_reason": printable(one.executor.reason),
                "executor_pause_s": one.executor.pause_s,
                "executor_memory_used_bytes": one.executor.memory_used_bytes,
                "executor_memory_bytes": one.executor.memory_bytes,
                "enforced_by": printable(one.enforced_by),
                "reported_at": now(session),
            }
            for one in report.slices
            if one.id in here
        ],
    )


def _observe_groups(session: Session, host: models.Host, report: Report) -> None:
    """Stores counters of groups, and deletes groups that were not reported.

    Only groups of tenants with slices on the GPU, or with stored counters there, are accepted: a host must not be able
    to show other tenants anything.
    """
    known = _groups(session, host)
    rows = [
        {
            "gpu_id": known[group.gpu, group.tenant][0],
            "tenant_id": known[group.gpu, group.tenant][1],
            **group.model_dump(exclude={"gpu", "tenant"}),
            "reported_at": now(session),
        }
        for group in report.groups
        if (group.gpu, group.tenant) in known
    ]
    upsert(session, observations.GroupObservation, rows)
    change(
        session,
        delete(observations.GroupObservation).where(
            observations.GroupObservation.gpu_id.in_(
                select(models.Gpu.id).where(models.Gpu.host_id == host.id).scalar_subquery()
            ),
            observations.GroupObservation.reported_at != now(session),
        ),
    )


def _groups(session: Session, host: models.Host) -> dict[tuple[str, str], tuple[UUID, UUID]]:
    """Returns GPU and tenant of each group that this host may have, by address and name."""
    places = (
        select(place.gpu_id, place.tenant_id)
        .join(models.Gpu, models.Gpu.id == place.gpu_id)
        .where(models.Gpu.host_id == host.id)
        for place in (models.Slice, observations.GroupObservation)
    )
    there = union(*places).subquery()
    found = session.execute(
        select(models.Gpu.address, models.Tenant.name, there.c.gpu_id, there.c.tenant_id)
        .join(models.Gpu, models.Gpu.id == there.c.gpu_id)
        .join(models.Tenant, models.Tenant.id == there.c.tenant_id)
    )
    return {(gpu, tenant): (gpu_id, tenant_id) for gpu, tenant, gpu_id, tenant_id in found}
