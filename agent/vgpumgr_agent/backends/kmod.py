# SPDX-License-Identifier: Apache-2.0
"""The backend of our kernel module and of brokers, whose GPUs the module does not touch. It uses the root helper."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from vgpumgr.wire.fleet import DesiredGroup, DesiredSlice
from vgpumgr_agent.backends import (
    Capabilities,
    GroupKey,
    Observed,
    ObservedExecutor,
    ObservedGpu,
    ObservedGroup,
    ObservedSlice,
)
from vgpumgr_agent.backends.brokers import groups_of, of_brokers
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.refused import Refused

NAME = "kmod"
_BROKER_S = 40.0
"""Time limit for a broker to start, stop or change: a GPU's driver may have to load."""


class KmodBackend:
    """The `SliceBackend` of our kernel module and of brokers."""

    def __init__(self, helper: HelperClient, *, call_s: float = 5.0) -> None:
        """`call_s`: how long to wait for the helper, including its restart."""
        self._helper = helper
        self._call_s = call_s

    def capabilities(self) -> Capabilities:
        """Return all capabilities, with separate timeslices for tenants."""
        return Capabilities(weight=True, cap=True, scope="tenant", enforced_by="kernel")

    def discover(self) -> list[ObservedGpu]:
        """Return the module's GPUs."""
        return list(self.observe().gpus.values())

    def observe(self) -> Observed:
        """Return the state that helper and kernel report."""
        answer = self._call("observe")
        try:
            return _observed(answer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Refused(
                "internal", f"the helper's answer lacks or garbles {error}; install agent and helper from one release"
            ) from error

    def bind(self, gpu: str) -> bool:
        """Have udev bind a GPU to the module, or adopt it. Never takes a GPU from another driver."""
        return self._call("bind", gpu=gpu).get("changed") is True

    def apply_group(self, group: DesiredGroup) -> None:
        """Configure a group. From then on the GPU's slices can be opened only with a permit."""
        self._call("configure", **group.model_dump(mode="json", exclude={"card"}))

    def forget_group(self, key: GroupKey) -> None:
        """Forget a group."""
        self._call("forget_group", gpu=key[0], tenant=key[1])

    def prepare(self, claim: DesiredSlice, *, vm_uuid: UUID, timeout_s: float) -> bool:
        """Create and permit a slice. The caller's timeout covers all waiting."""
        answer = self._call(
            "prepare",
            timeout_s=timeout_s,
            gpu=claim.gpu,
            mdev_type=claim.mdev_type,
            vm_uuid=str(vm_uuid),
            memory_max_bytes=claim.executor_memory_max_bytes,
            tasks_max=claim.executor_tasks_max,
            cpu_max_permille=claim.executor_cpu_max_permille,
            **_share(claim),
        )
        return answer.get("created") is True

    def execute(self, uuid: UUID) -> bool:
        """Start an executor."""
        return self._call("execute", uuid=str(uuid)).get("started") is True

    def halt(self, uuid: UUID) -> None:
        """End an executor."""
        self._call("halt", uuid=str(uuid))

    def apply(self, claim: DesiredSlice) -> None:
        """Set tenant, weight and cap."""
        self._call("apply", **_share(claim))

    def admit(self, claims: Sequence[DesiredSlice]) -> bool:
        """Make a broker accept the programs of these claims. The broker may have to start first."""
        terms = [{"timeslice_us": each.timeslice_us, "mem_bytes": each.mem_bytes, **_share(each)} for each in claims]
        return self._call("admit", timeout_s=_BROKER_S, gpu=claims[0].gpu, claims=terms).get("changed") is True

    def dismiss(self, uuid: UUID) -> None:
        """Remove a claim from its broker."""
        self._call("dismiss", timeout_s=_BROKER_S, uuid=str(uuid))

    def renew(self, uuid: UUID) -> bool:
        """Renew a permit."""
        return self._call("renew", uuid=str(uuid)).get("renewed") is True

    def withdraw(self, uuid: UUID) -> None:
        """Withdraw a permit."""
        self._call("withdraw", uuid=str(uuid))

    def remove(self, uuid: UUID, *, vm_gone: bool, withdraw: bool) -> bool:
        """Remove a slice."""
        return self._call("remove", uuid=str(uuid), vm_gone=vm_gone, withdraw=withdraw).get("state") == "absent"

    def _call(self, operation: str, *, timeout_s: float | None = None, **members: Any) -> dict[str, Any]:
        return self._helper.call(operation, timeout_s=timeout_s or self._call_s, retry=True, **members)


def _share(claim: DesiredSlice) -> dict[str, Any]:
    return {
        "uuid": str(claim.id),
        "tenant": claim.tenant,
        "weight": claim.weight,
        "cap_us": claim.cap_us,
        "cap_period_us": claim.cap_period_us,
    }


def _observed(answer: dict[str, Any]) -> Observed:
    records = {UUID(record["uuid"]): record for record in answer["records"]}
    slices = {UUID(found["uuid"]): _slice(found, records.get(UUID(found["uuid"]))) for found in answer["slices"]}
    groups = [_group(found) for found in answer["groups"]]
    brokers = of_brokers(answer["brokers"])
    return Observed(
        boot_id=UUID(answer["boot_id"]),
        machine=str(answer["machine"]),
        gpus={found["name"]: _gpu(found) for found in answer["gpus"]},
        groups={(group.gpu, group.tenant): group for group in [*groups, *groups_of(**brokers)]},
        slices=slices,
        stale_records=frozenset(records.keys() - slices.keys()),
        removing=frozenset(UUID(uuid) for uuid in answer["removing"]),
        executors={UUID(found["uuid"]): _executor(found) for found in answer["executors"]},
        **brokers,
    )


def _gpu(found: dict[str, Any]) -> ObservedGpu:
    values = {name: value for name, value in found.items() if name not in ("name", "types")}
    types = {kind["id"]: kind["mem_bytes"] for kind in found["types"]}
    return ObservedGpu(address=found["name"], backend=NAME, types=types, **values)


def _group(found: dict[str, Any]) -> ObservedGroup:
    values = {name: value for name, value in found.items() if name != "name"}
    return ObservedGroup(tenant=found["name"], **values)


def _executor(found: dict[str, Any]) -> ObservedExecutor:
    return ObservedExecutor(**{name: value for name, value in found.items() if name != "uuid"})


def _slice(found: dict[str, Any], record: dict[str, Any] | None) -> ObservedSlice:
    values = {name: value for name, value in found.items() if name not in ("uuid", "scheduled")}
    vm_uuid = record["vm_uuid"] if record else ""
    return ObservedSlice(
        uuid=UUID(found["uuid"]), recorded=record is not None, vm_uuid=UUID(vm_uuid) if vm_uuid else None, **values
    )
