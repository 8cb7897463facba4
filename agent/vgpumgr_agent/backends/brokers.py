# SPDX-License-Identifier: Apache-2.0
"""Reads the helper's answer about brokers: the places of claims for processes, and the GPU time of tenants."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict
from uuid import UUID

from vgpumgr_agent.backends import ObservedBroker, ObservedGroup, ObservedPlace, Terms


class OfBrokers(TypedDict):
    """The members of `Observed` that concern brokers."""

    places: Mapping[UUID, ObservedPlace]
    brokers: Mapping[str, ObservedBroker]


def of_brokers(answer: Sequence[dict[str, Any]]) -> OfBrokers:
    """Parse the brokers' part of the helper's answer. Raises KeyError, TypeError or ValueError if it is malformed."""
    places = {place.uuid: place for broker in answer for place in _places(broker)}
    return {"places": places, "brokers": {found["gpu"]: _broker(found) for found in answer}}


def _broker(found: dict[str, Any]) -> ObservedBroker:
    return ObservedBroker(**{name: value for name, value in found.items() if name not in ("claims", "tenants")})


def _places(broker: dict[str, Any]) -> Iterator[ObservedPlace]:
    """Merge the admitted claims with the broker's tenants. The two can differ during a change."""
    tenants = {tenant["uuid"]: tenant for tenant in broker["tenants"]}
    terms = {claim["uuid"]: Terms(**_without_uuid(claim)) for claim in broker["claims"]}
    for uuid in sorted(tenants.keys() | terms.keys()):
        yield ObservedPlace(
            uuid=UUID(uuid),
            gpu=broker["gpu"],
            served=uuid in tenants,
            terms=terms.get(uuid),
            **_without_uuid(tenants.get(uuid, {})),
        )


def _without_uuid(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "uuid"}


def groups_of(places: Mapping[UUID, ObservedPlace], brokers: Mapping[str, ObservedBroker]) -> Iterator[ObservedGroup]:
    """Yield a group for each tenant and each GPU with a running broker: the sum of the tenant's places on the GPU.

    The counters grow while the tenant has a place and the broker runs; see `ObservedBroker.retired_ns`.
    """
    members: dict[tuple[str, str], list[tuple[ObservedPlace, Terms]]] = {}
    for place in places.values():
        if place.terms is not None and brokers[place.gpu].running:
            members.setdefault((place.gpu, place.terms.tenant), []).append((place, place.terms))
    for (gpu, tenant), its in members.items():
        terms = [each for _, each in its]
        periods = {each.cap_period_us for each in terms if each.cap_us}
        capped = len(periods) == 1 and all(each.cap_us for each in terms)
        yield ObservedGroup(
            gpu=gpu,
            tenant=tenant,
            configured=True,
            slices=len(its),
            weight=sum(each.weight for each in terms),
            timeslice_us=terms[0].timeslice_us,
            cap_us=sum(each.cap_us for each in terms) if capped else 0,
            cap_period_us=periods.pop() if capped else 0,
            run_ns=sum(place.run_ns for place, _ in its) + brokers[gpu].retired_ns.get(tenant, 0),
            generation=1,
            id=brokers[gpu].started_ns,
        )
