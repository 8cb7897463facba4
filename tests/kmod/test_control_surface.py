# SPDX-License-Identifier: Apache-2.0
"""Netlink and sysfs of the real module: what is refused, how, and that it changed nothing."""

import errno
import os
import subprocess
import threading
import time
import uuid as uuids
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.rig.gpu import ADDRESS as GPU
from tests.rig.gpu import Gpu, poll
from tests.rig.settings import refusal, unchanged
from tests.rig.vfio import opened
from vgpumgr.control import wire
from vgpumgr.control.netlink import Control
from vgpumgr.control.protocol import Command, SliceAttribute, TenantAttribute
from vgpumgr.control.sysfs import Sysfs
from vgpumgr.errors import (
    AlreadyExistsError,
    BusyError,
    InvalidFieldError,
    NoCapacityError,
    NotFoundError,
    NotPermittedError,
    OutOfRangeError,
    RefusedError,
    StaleGenerationError,
    UnknownGpuError,
)

NOWHERE = "0000:00:1f.7"
UNKNOWN = "c0ffee00-0000-4000-8000-00000000ffff"
GOOD = {"weight": 100, "timeslice_us": 1000}


@pytest.fixture
def host(gpu: Gpu) -> Iterator[Sysfs]:
    memory_total = gpu.sysfs.read_gpu(GPU, "memory_total")
    yield gpu.sysfs
    gpu.sysfs.write_gpu(GPU, "memory_total", memory_total)


def new_slice(host: Sysfs, type_id: str = "mem16m") -> str:
    uuid = str(uuids.uuid4())
    host.create(GPU, type_id, uuid)
    return uuid


# ---- GPUs


def test_a_gpu_tells_what_it_is(control: Control, host: Sysfs) -> None:
    (gpu,) = control.gpus()
    assert gpu.name == control.gpu(GPU).name == GPU
    assert host.gpus() == [GPU]
    assert gpu.engine == host.read_gpu(GPU, "engine") == "soft"
    assert gpu.attach == host.read_gpu(GPU, "attach") == "any"
    assert gpu.memory_total_bytes == int(host.read_gpu(GPU, "memory_total"))
    assert gpu.max_chunk_us == int(host.read_gpu(GPU, "max_chunk_us"))
    assert gpu.timeslice_min_us == int(host.read_gpu(GPU, "timeslice_min_us"))
    assert host.read_gpu(GPU, "abi_version") == "1.1"
    assert gpu.policy == host.read_gpu(GPU, "policy") == "best_effort"
    assert {"permit", "reservation", "hold", "policy"} <= set(host.read_gpu(GPU, "features").split())
    assert 0 < gpu.idle_ns <= gpu.wall_ns


def test_the_clock_of_an_idle_gpu_does_not_stand(control: Control, host: Sysfs) -> None:
    first = control.gpu(GPU)
    second = control.gpu(GPU)
    assert second.wall_ns > first.wall_ns
    assert second.wall_ns - first.wall_ns == second.idle_ns - first.idle_ns


def test_created_slices_reserve_memory_until_none_is_left(control: Control, host: Sysfs) -> None:
    host.write_gpu(GPU, "memory_total", 48 << 20)
    uuids_made = [new_slice(host) for _ in range(3)]
    assert control.gpu(GPU).memory_reserved_bytes == 48 << 20
    assert {kind.id: kind.available for kind in host.types(GPU)}["vgpumgr-mem16m"] == 0
    with unchanged(control, host):
        assert isinstance(refusal(lambda: new_slice(host)), NoCapacityError)
        assert isinstance(refusal(lambda: host.create(GPU, "mem16m", uuids_made[0])), AlreadyExistsError)
        assert isinstance(refusal(lambda: host.write_gpu(GPU, "memory_total", 47 << 20)), BusyError)
    host.remove(uuids_made[0])
    assert control.gpu(GPU).memory_reserved_bytes == 32 << 20


@pytest.mark.parametrize(
    ("attribute", "value", "number"),
    [
        ("attach", "nobody", errno.EINVAL),
        ("attach", "", errno.EINVAL),
        ("max_chunk_us", "0", errno.ERANGE),
        ("max_chunk_us", "10000001", errno.ERANGE),
        ("max_chunk_us", "-1", errno.EINVAL),
        ("max_chunk_us", "4294967296", errno.ERANGE),
        ("max_chunk_us", "soon", errno.EINVAL),
        ("memory_total", "1", errno.ERANGE),
        ("memory_total", "much", errno.EINVAL),
        ("engine", "warp", errno.EINVAL),
        ("engine", "", errno.EINVAL),
        ("engines", "edu", errno.EACCES),
        ("abi_version", "2.0", errno.EACCES),
    ],
)
def test_a_bad_attribute_of_a_gpu_is_refused(
    control: Control, host: Sysfs, attribute: str, value: str, number: int
) -> None:
    with unchanged(control, host):
        error = refusal(lambda: host.write_gpu(GPU, attribute, value))
    # root may open a read-only file; then sysfs itself answers
    assert error.errno == number or (number == errno.EACCES and error.errno in (errno.EACCES, errno.EIO))
    assert error.field == attribute
    assert attribute in str(error)


# ---- tenants


def test_a_tenant_is_configured_changed_and_forgotten(control: Control, host: Sysfs) -> None:
    assert control.set_tenant(GPU, "blue", **GOOD) == 1
    made = control.tenant(GPU, "blue")
    assert (made.configured, made.weight, made.timeslice_us, made.cap_us) == (True, 100, 1000, 0)
    assert control.set_tenant(GPU, "blue", cap_us=2000, cap_period_us=10000, burst_us=4000) == 2
    changed = control.tenant(GPU, "blue")
    assert (changed.weight, changed.timeslice_us) == (100, 1000)
    assert (changed.cap_us, changed.cap_period_us, changed.burst_us) == (2000, 10000, 4000)
    control.delete_tenant(GPU, "blue")
    assert control.tenants(GPU) == []
    assert control.set_tenant(GPU, "blue", **GOOD) == 1


CAPPED = {**GOOD, "cap_period_us": 10000}
TENANT_FAULTS: list[tuple[dict[str, Any], str, type[RefusedError]]] = [
    ({"weight": 100}, "timeslice-us", InvalidFieldError),
    ({"timeslice_us": 1000}, "weight", InvalidFieldError),
    ({**GOOD, "weight": 0}, "weight", OutOfRangeError),
    ({**GOOD, "weight": 10001}, "weight", OutOfRangeError),
    ({**GOOD, "weight": 0xFFFFFFFF}, "weight", OutOfRangeError),
    ({**GOOD, "timeslice_us": 0}, "timeslice-us", OutOfRangeError),
    ({**GOOD, "timeslice_us": 9}, "timeslice-us", OutOfRangeError),
    ({**GOOD, "timeslice_us": 1000001}, "timeslice-us", OutOfRangeError),
    ({**GOOD, "cap_us": 100}, "cap-period-us", OutOfRangeError),
    ({**CAPPED, "cap_us": 10001}, "cap-us", OutOfRangeError),
    ({**CAPPED, "cap_us": 99, "cap_period_us": 1000000}, "cap-us", OutOfRangeError),
    ({**CAPPED, "cap_us": 1000001}, "cap-us", OutOfRangeError),
    ({**GOOD, "cap_us": 50, "cap_period_us": 99}, "cap-period-us", OutOfRangeError),
    ({**GOOD, "cap_us": 100, "cap_period_us": 1000001}, "cap-period-us", OutOfRangeError),
    ({**CAPPED, "cap_us": 100, "burst_us": 9}, "burst-us", OutOfRangeError),
    ({**CAPPED, "cap_us": 100, "burst_us": 8000001}, "burst-us", OutOfRangeError),
    ({**GOOD, "if_generation": 7}, "if-generation", StaleGenerationError),
]


@pytest.mark.parametrize(("options", "field", "kind"), TENANT_FAULTS)
@pytest.mark.parametrize("exists", [False, True])
def test_a_bad_parameter_of_a_tenant_is_refused(
    control: Control, host: Sysfs, options: dict[str, Any], field: str, kind: type[RefusedError], exists: bool
) -> None:
    if exists and kind is InvalidFieldError:
        pytest.skip("only a tenant that is new needs this field")
    if exists:
        control.set_tenant(GPU, "blue", weight=7, timeslice_us=1700)
    with unchanged(control, host):
        error = refusal(lambda: control.set_tenant(GPU, "blue", **options))
    assert type(error) is kind, str(error)
    assert error.field == field
    assert field in str(error)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "tenänt", "a\n", "x" * 64, "*"])
def test_a_bad_name_of_a_tenant_is_refused(control: Control, host: Sysfs, name: str) -> None:
    uuid = new_slice(host)
    with unchanged(control, host):
        error = refusal(lambda: control.set_tenant(GPU, name, **GOOD))
        assert error.errno in (errno.EINVAL, errno.ERANGE)
        assert error.field == "tenant"
        if name:  # the empty one means none
            error = refusal(lambda: control.set_slice(uuid, tenant=name))
            assert error.errno in (errno.EINVAL, errno.ERANGE)
            assert error.field == "tenant"
        error = refusal(lambda: host.write(uuid, "tenant", name))
        assert (error.errno, error.field) == (errno.EINVAL, "tenant")


def test_names_of_63_characters_are_good(control: Control, host: Sysfs) -> None:
    name = "A.b_c-9" * 9
    assert len(name) == 63
    control.set_tenant(GPU, name, **GOOD)
    control.set_slice(new_slice(host), tenant=name)
    assert control.tenant(GPU, name).slices == 1


def test_unknown_objects_are_named(control: Control, host: Sysfs) -> None:
    with unchanged(control, host):
        for act, kind, field in (
            (lambda: control.gpu(NOWHERE), UnknownGpuError, "name"),
            (lambda: control.set_gpu(NOWHERE, policy="equal_share"), UnknownGpuError, "name"),
            (lambda: control.tenant(NOWHERE, "blue"), UnknownGpuError, "gpu"),
            (lambda: control.tenant(GPU, "blue"), NotFoundError, "tenant"),
            (lambda: control.tenants(NOWHERE), UnknownGpuError, "gpu"),
            (lambda: control.slices(NOWHERE), UnknownGpuError, "gpu"),
            (lambda: control.set_tenant(NOWHERE, "blue", **GOOD), UnknownGpuError, "gpu"),
            (lambda: control.delete_tenant(NOWHERE, "blue"), UnknownGpuError, "gpu"),
            (lambda: control.delete_tenant(GPU, "blue"), NotFoundError, "tenant"),
            (lambda: control.slice(UNKNOWN), NotFoundError, "uuid"),
            (lambda: control.slice("blue"), InvalidFieldError, "uuid"),
            (lambda: control.set_slice(UNKNOWN, weight=2), NotFoundError, "uuid"),
            (lambda: control.set_slice(UNKNOWN[:-1] + "x", weight=2), InvalidFieldError, "uuid"),
        ):
            error = refusal(act)
            assert type(error) is kind, str(error)
            assert error.field == field, str(error)


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (Command.GPU_GET, "name"),
        (Command.GPU_SET, "name"),
        (Command.TENANT_GET, "tenant"),
        (Command.TENANT_SET, "tenant"),
        (Command.TENANT_DEL, "tenant"),
        (Command.SLICE_GET, "uuid"),
        (Command.SLICE_SET, "uuid"),
    ],
)
def test_a_request_about_nothing_names_what_is_missing(
    control: Control, host: Sysfs, command: Command, field: str
) -> None:
    with unchanged(control, host):
        error = refusal(lambda: control.request(command, b""))
    assert isinstance(error, InvalidFieldError)
    assert error.field == field
    assert "missing" in error.reason


def tenant_request(*more: bytes) -> bytes:
    names = {TenantAttribute.GPU: GPU, TenantAttribute.TENANT: "blue"}
    given = [wire.encode_attribute(number, wire.encode_value("string", value)) for number, value in names.items()]
    return b"".join((*given, *more))


@pytest.mark.parametrize(
    ("attribute", "field"),
    [
        (wire.encode_attribute(TenantAttribute.WEIGHT, b"\1\0"), "weight"),
        (wire.encode_attribute(TenantAttribute.WEIGHT, bytes(8)), "weight"),
        (wire.encode_attribute(TenantAttribute.IF_GENERATION, bytes(4)), "if-generation"),
        (wire.encode_attribute(TenantAttribute.TENANT, b"blue"), "tenant"),
        (wire.encode_attribute(TenantAttribute.TENANT, b""), "tenant"),
        (wire.encode_attribute(TenantAttribute.GPU, b"0" * 99 + b"\0"), "gpu"),
        (wire.encode_attribute(TenantAttribute.RUN_NS, bytes(8)), "run-ns"),
        (wire.encode_attribute(TenantAttribute.GHOST_NS, bytes(8)), "ghost-ns"),
        (wire.encode_attribute(TenantAttribute.PAD, bytes(8)), "pad"),
        (wire.encode_attribute(999, bytes(4)), "attribute 999"),
    ],
)
def test_a_malformed_attribute_is_refused_and_named(
    control: Control, host: Sysfs, attribute: bytes, field: str
) -> None:
    good = [wire.encode_attribute(TenantAttribute.WEIGHT, wire.encode_value("u32", 100))]
    good.append(wire.encode_attribute(TenantAttribute.TIMESLICE_US, wire.encode_value("u32", 1000)))
    with unchanged(control, host):
        error = refusal(lambda: control.request(Command.TENANT_SET, tenant_request(*good, attribute)))
    assert error.errno in (errno.EINVAL, errno.ERANGE)
    assert error.field == field


def test_generations_compare_and_set(control: Control, host: Sysfs) -> None:
    assert control.set_tenant(GPU, "blue", **GOOD, if_generation=0) == 1
    with unchanged(control, host):
        error = refusal(lambda: control.set_tenant(GPU, "blue", weight=5, if_generation=0))
        assert isinstance(error, StaleGenerationError)
        assert error.field == "if-generation"
        assert isinstance(
            refusal(lambda: control.set_tenant(GPU, "blue", weight=5, if_generation=2)), StaleGenerationError
        )
    assert control.set_tenant(GPU, "blue", weight=5, if_generation=1) == 2
    assert control.tenant(GPU, "blue").weight == 5
    with unchanged(control, host):
        refusal(lambda: control.set_tenant(GPU, "blue", weight=0, if_generation=2))
    assert control.tenant(GPU, "blue").generation == 2


def test_a_tenant_that_only_a_slice_names_has_generation_zero(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host)
    control.set_slice(uuid, tenant="blue")
    named = control.tenant(GPU, "blue")
    assert (named.configured, named.generation, named.slices, named.weight) == (False, 0, 1, 0)
    assert not control.slice(uuid).scheduled
    assert control.set_tenant(GPU, "blue", **GOOD, if_generation=0) == 1
    assert control.slice(uuid).scheduled


def test_a_tenant_with_slices_stays(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host)
    control.set_tenant(GPU, "blue", **GOOD)
    control.set_slice(uuid, tenant="blue")
    with unchanged(control, host):
        error = refusal(lambda: control.delete_tenant(GPU, "blue"))
        assert isinstance(error, BusyError)
        assert error.field == "tenant"
    control.set_slice(uuid, tenant="")
    control.delete_tenant(GPU, "blue")
    assert control.tenants() == []


# ---- slices


def test_a_slice_moves_between_tenants_and_keeps_what_is_left_out(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host)
    control.set_tenant(GPU, "blue", **GOOD)
    control.set_slice(uuid, tenant="blue", weight=3, cap_us=100, cap_period_us=1000, burst_us=1500)
    control.set_slice(uuid, tenant="green")
    moved = control.slice(uuid)
    assert (moved.tenant, moved.scheduled) == ("green", False)
    assert (moved.weight, moved.cap_us, moved.cap_period_us, moved.burst_us) == (3, 100, 1000, 1500)
    control.set_slice(uuid, tenant="blue", weight=4)
    back = control.slice(uuid)
    assert (back.tenant, back.scheduled, back.weight) == ("blue", True, 4)
    assert [tenant.name for tenant in control.tenants(GPU)] == ["blue"]
    control.set_slice(uuid, tenant="")
    assert control.slice(uuid).tenant == ""


@pytest.mark.parametrize("tenant", [None, "blue", "green"])
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"weight": 0}, "weight"),
        ({"weight": 10001}, "weight"),
        ({"cap_us": 100}, "cap-period-us"),
        ({"cap_us": 2000, "cap_period_us": 1000}, "cap-us"),
        ({"cap_us": 1, "cap_period_us": 100000}, "cap-us"),
        ({"cap_period_us": 99}, "cap-period-us"),
        ({"cap_us": 100, "cap_period_us": 1000, "burst_us": 1}, "burst-us"),
    ],
)
def test_a_bad_parameter_of_a_slice_is_refused(
    control: Control, host: Sysfs, options: dict[str, int], field: str, tenant: str | None
) -> None:
    uuid = new_slice(host)
    control.set_tenant(GPU, "blue", **GOOD)
    if tenant:
        control.set_slice(uuid, tenant="blue")
    with unchanged(control, host):
        error = refusal(lambda: control.set_slice(uuid, tenant=tenant, **options))
    assert isinstance(error, OutOfRangeError), str(error)
    assert error.field == field


def test_the_tenant_of_an_open_slice_stays(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host)
    control.set_tenant(GPU, "blue", **GOOD)
    control.set_slice(uuid, tenant="blue")
    with opened(uuid):
        assert control.slice(uuid).open
        with unchanged(control, host):
            for tenant in ("green", ""):
                error = refusal(lambda name=tenant: control.set_slice(uuid, tenant=name, weight=9))  # type: ignore[misc]
                assert isinstance(error, BusyError)
                assert error.field == "tenant"
        control.set_slice(uuid, tenant="blue", weight=9)
        assert control.slice(uuid).weight == 9
    poll(lambda: not control.slice(uuid).open)
    control.set_slice(uuid, tenant="green")


def test_a_slice_runs_nothing_until_its_tenant_is_configured(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host)
    control.set_slice(uuid, tenant="blue")
    command = ["vgpu-client", uuid, "saturate", "--op", "delay", "--delay-us", "100", "--seconds", "60"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as client:
        try:
            poll(lambda: control.slice(uuid).queued >= 8)
            waiting = control.slice(uuid)
            assert (waiting.items, waiting.run_ns, waiting.scheduled) == (0, 0, False)
            assert host.read(uuid, "state") == "inert"
            picks = control.gpu(GPU).picks
            time.sleep(0.5)
            assert control.gpu(GPU).picks == picks, "something wakes the engine"
            control.set_tenant(GPU, "blue", **GOOD)
            poll(lambda: control.slice(uuid).items > 100)
            assert host.read(uuid, "state") in ("ready", "idle")
        finally:
            client.kill()
    poll(lambda: not control.slice(uuid).open)
    done = control.tenant(GPU, "blue")
    assert done.run_ns > 0
    assert done.histogram.total == done.runs > 0


# ---- lists


def test_lists_of_64_slices_are_complete_and_sorted_out_by_gpu(control: Control, host: Sysfs) -> None:
    made = [new_slice(host) for _ in range(64)]
    for number, uuid in enumerate(made):
        control.set_slice(uuid, tenant=f"tenant-{number:02}")
    found = control.slices()
    assert sorted(device.uuid for device in found) == sorted(made)
    assert {device.gpu for device in found} == {GPU}
    assert control.slices(GPU) == found
    assert [tenant.name for tenant in control.tenants(GPU)] == [f"tenant-{number:02}" for number in range(64)]
    for uuid in made:
        host.remove(uuid)
    assert control.slices() == []
    assert control.tenants() == [], "an unconfigured tenant goes with its last slice"


def test_lists_survive_slices_that_come_and_go(control: Control, host: Sysfs) -> None:
    stays = sorted(new_slice(host) for _ in range(24))
    failures: list[BaseException] = []
    stop = threading.Event()

    def churn() -> None:
        try:
            while not stop.is_set():
                uuid = new_slice(host)
                host.write(uuid, "tenant", f"t-{uuid}")
                host.remove(uuid)
        except BaseException as error:  # an assertion of the main thread reports it
            failures.append(error)

    churners = [threading.Thread(target=churn) for _ in range(2)]
    for thread in churners:
        thread.start()
    try:
        request = wire.encode_attribute(SliceAttribute.GPU, wire.encode_value("string", GPU))
        for _ in range(60):
            # one attempt each: complete for what stays, whatever else comes and goes
            answers = control.request(Command.SLICE_GET, request, dump=True)
            found = [
                wire.decode_value("string", payload)
                for answer in answers
                for number, payload in wire.decode_attributes(answer)
                if number == SliceAttribute.UUID
            ]
            assert len(found) == len(set(found))
            assert set(stays) <= set(found)
            control.request(Command.TENANT_GET, b"", dump=True)
    finally:
        stop.set()
        for thread in churners:
            thread.join(timeout=60)
    assert not failures
    assert sorted(device.uuid for device in control.slices()) == stays


def test_reading_takes_no_privilege_and_setting_does(control: Control, host: Sysfs) -> None:
    """In a child process without root, which inherits no socket."""
    uuid = new_slice(host)
    control.set_tenant(GPU, "blue", **GOOD)
    with unchanged(control, host):
        child = os.fork()
        if not child:
            status = 1
            try:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
                with Control() as client:
                    assert client.tenant(GPU, "blue").weight == 100
                    assert client.slices()[0].uuid == uuid
                    for act in (
                        lambda: client.set_gpu(GPU, reserve_limit_permille=100),
                        lambda: client.set_tenant(GPU, "blue", weight=9),
                        lambda: client.delete_tenant(GPU, "blue"),
                        lambda: client.set_slice(uuid, weight=9),
                    ):
                        assert isinstance(refusal(act), NotPermittedError)
                assert isinstance(refusal(lambda: host.read(uuid, "permit")), NotPermittedError)
                assert isinstance(refusal(lambda: host.write(uuid, "weight", 9)), NotPermittedError)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


# ---- attributes of a slice


def test_attributes_are_writable_until_a_tenant_is_set(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host, "mem64m")
    assert host.read(uuid, "tenant") == ""
    assert host.read(uuid, "state") == "inert"
    assert int(host.read(uuid, "memory_bytes")) == 64 << 20
    for attribute, value in (("weight", 7), ("cap_period_us", 10000), ("cap_us", 2000), ("tenant", "blue")):
        host.write(uuid, attribute, value)
        assert host.read(uuid, attribute) == str(value)
    found = control.slice(uuid)
    assert (found.tenant, found.weight, found.cap_us, found.cap_period_us) == ("blue", 7, 2000, 10000)
    with unchanged(control, host):
        for attribute, value in (
            ("weight", 8),
            ("cap_us", 1),
            ("cap_period_us", 20000),
            ("tenant", "green"),
            ("sched_config", "tenant=green weight=2"),
        ):
            error = refusal(lambda name=attribute, text=value: host.write(uuid, name, text))  # type: ignore[misc]
            assert isinstance(error, BusyError)
            assert error.field == attribute
    control.set_slice(uuid, weight=9)
    assert host.read(uuid, "weight") == "9", "a mirror shows what netlink has set"
    control.set_tenant(GPU, "blue", **GOOD)
    assert host.read(uuid, "state") == "idle"


@pytest.mark.parametrize(
    ("attribute", "value", "number"),
    [
        ("weight", "0", errno.ERANGE),
        ("weight", "10001", errno.ERANGE),
        ("weight", "4294967296", errno.ERANGE),
        ("weight", "-1", errno.EINVAL),
        ("weight", "", errno.EINVAL),
        ("weight", "1 2", errno.EINVAL),
        ("cap_us", "100", errno.ERANGE),
        ("cap_period_us", "99", errno.ERANGE),
        ("cap_period_us", "1000001", errno.ERANGE),
        ("permit", "2", errno.EINVAL),
        ("permit", "-1", errno.EINVAL),
        ("permit", "yes", errno.EINVAL),
        ("sched_config", "weight=2 colour=blue", errno.EINVAL),
        ("sched_config", "weight=2 cap_us", errno.EINVAL),
        ("sched_config", "tenant=blue weight=0", errno.ERANGE),
        ("sched_config", "tenant=blue cap_us=3 cap_period_us=2", errno.ERANGE),
        ("sched_config", "tenant=b/lue weight=3", errno.EINVAL),
        ("sched_config", "weight=2\0", errno.EINVAL),
        ("tenant", "blue\0green", errno.EINVAL),
    ],
)
def test_a_bad_attribute_of_a_slice_is_refused(
    control: Control, host: Sysfs, attribute: str, value: str, number: int
) -> None:
    uuid = new_slice(host)
    with unchanged(control, host):
        error = refusal(lambda: host.write(uuid, attribute, value))
    assert (error.errno, error.field) == (number, attribute), str(error)


def test_sched_config_sets_everything_at_once(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host)
    assert host.read(uuid, "sched_config") == "tenant= weight=1 cap_us=0 cap_period_us=0"
    host.write(uuid, "sched_config", "cap_period_us=5000 cap_us=1000 weight=6")
    assert host.read(uuid, "sched_config") == "tenant= weight=6 cap_us=1000 cap_period_us=5000"
    host.write(uuid, "sched_config", host.read(uuid, "sched_config"))
    host.write(uuid, "sched_config", "tenant=blue")
    assert host.read(uuid, "sched_config") == "tenant=blue weight=6 cap_us=1000 cap_period_us=5000"
    assert control.tenant(GPU, "blue").slices == 1


# ---- permits


def open_status(uuid: str) -> int:
    """0, or the errno with which opening was refused."""
    try:
        with opened(uuid):
            return 0
    except OSError as error:
        return error.errno or -1


def test_a_permit_is_for_one_opening(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host)
    assert open_status(uuid) == 0, "attach=any asks for none"
    host.write_gpu(GPU, "attach", "permit")
    assert control.gpu(GPU).attach == "permit"
    assert open_status(uuid) == errno.EPERM
    host.grant(uuid)
    assert 0 < host.permit_s(uuid) <= 120
    assert open_status(uuid) == 0
    assert host.permit_s(uuid) == 0
    assert open_status(uuid) == errno.EPERM


def test_a_permit_that_was_withdrawn_is_worth_nothing(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host)
    other = new_slice(host)
    host.write_gpu(GPU, "attach", "permit")
    host.grant(uuid)
    assert open_status(other) == errno.EPERM, "it is for one slice"
    assert host.permit_s(other) == 0
    host.withdraw(uuid)
    assert host.permit_s(uuid) == 0
    assert open_status(uuid) == errno.EPERM
    host.withdraw(uuid)


def test_only_root_may_see_or_write_permits(host: Sysfs) -> None:
    uuid = new_slice(host)
    assert (Path("/sys/bus/mdev/devices") / uuid / "permit").stat().st_mode & 0o777 == 0o600


# ---- mdevctl


def mdevctl(*arguments: str) -> str:
    return subprocess.run(["mdevctl", *arguments], check=True, capture_output=True, text=True).stdout


def test_mdevctl_lists_types_and_slices(host: Sysfs) -> None:
    uuid = new_slice(host)
    types = mdevctl("types")
    assert GPU in types
    assert "vgpumgr-mem16m" in types
    assert "vfio-pci" in types
    assert f"{uuid} {GPU} vgpumgr-mem16m" in mdevctl("list")


def test_mdevctl_starts_a_slice_with_its_attributes(control: Control, host: Sysfs) -> None:
    uuid = str(uuids.uuid4())
    mdevctl("define", "--uuid", uuid, "--parent", GPU, "--type", "vgpumgr-mem16m")
    try:
        mdevctl("modify", "--uuid", uuid, "--addattr", "sched_config", "--value", "tenant=blue weight=5")
        mdevctl("start", "--uuid", uuid)
        found = control.slice(uuid)
        assert (found.tenant, found.weight) == ("blue", 5)
        mdevctl("stop", "--uuid", uuid)
        assert not host.exists(uuid)
    finally:
        mdevctl("undefine", "--uuid", uuid)


@contextmanager
def defined(**attributes: str) -> Iterator[str]:
    """A slice that mdevctl knows and has not started, with attributes in this order."""
    uuid = str(uuids.uuid4())
    mdevctl("define", "--uuid", uuid, "--parent", GPU, "--type", "vgpumgr-mem16m")
    try:
        for name, value in attributes.items():
            mdevctl("modify", "--uuid", uuid, "--addattr", name, "--value", value)
        yield uuid
    finally:
        mdevctl("undefine", "--uuid", uuid)


def test_mdevctl_starts_a_slice_with_single_attributes_of_which_the_tenant_is_the_last(
    control: Control, host: Sysfs
) -> None:
    with defined(weight="7", cap_period_us="10000", cap_us="500", tenant="blue") as uuid:
        mdevctl("start", "--uuid", uuid)
        found = control.slice(uuid)
        mdevctl("stop", "--uuid", uuid)
    assert (found.tenant, found.weight, found.cap_us, found.cap_period_us) == ("blue", 7, 500, 10000)


MDEVCTL_FAULTS = [
    ({"weight": "10001"}, errno.ERANGE, "weight"),
    ({"cap_us": "500"}, errno.ERANGE, "cap_period_us"),
    ({"tenant": "no such name"}, errno.EINVAL, "tenant"),
    ({"tenant": "blue", "weight": "2"}, errno.EBUSY, "tenant"),
    ({"sched_config": "tenant=blue weight=0"}, errno.ERANGE, "weight"),
    ({"sched_config": "tenant=blue speed=9"}, errno.EINVAL, "speed"),
    ({"sched_config": "tenant=blue weight"}, errno.EINVAL, "weight"),
]


@pytest.fixture(scope="module")
def quiet_log() -> None:
    """The kernel's limit of 10 lines in 5 s begins anew."""
    time.sleep(6)


@pytest.mark.usefixtures("quiet_log")
@pytest.mark.parametrize(("attributes", "number", "field"), MDEVCTL_FAULTS)
def test_mdevctl_starts_no_slice_with_a_bad_attribute(
    control: Control, host: Sysfs, attributes: dict[str, str], number: int, field: str
) -> None:
    """Its user is told the error, the kernel's log names slice and field, and nothing is left."""
    with unchanged(control, host), defined(**attributes) as uuid:
        with pytest.raises(subprocess.CalledProcessError) as caught:
            mdevctl("start", "--uuid", uuid)
        assert os.strerror(number) in caught.value.stderr
        assert not host.exists(uuid)
    log = subprocess.run(["dmesg"], check=True, capture_output=True, text=True).stdout
    name = list(attributes)[-1]
    assert f"{uuid}: attribute {name} refused for {field}: -{errno.errorcode[number]}" in log


GPU_FAULTS = [
    ("attach", "never", errno.EINVAL),
    ("max_chunk_us", "-1", errno.EINVAL),
    ("memory_total", "all", errno.EINVAL),
    ("memory_total", "4096", errno.ERANGE),
    ("places", "4294967296", errno.ERANGE),
    ("policy", "fixed_share seats=2", errno.EINVAL),
]


@pytest.mark.usefixtures("quiet_log")
@pytest.mark.parametrize(("attribute", "text", "number"), GPU_FAULTS)
def test_the_log_names_gpu_and_attribute_that_a_bad_value_was_written_to(
    control: Control, host: Sysfs, attribute: str, text: str, number: int
) -> None:
    with unchanged(control, host):
        assert refusal(lambda: host.write_gpu(GPU, attribute, text)).errno == number
    log = subprocess.run(["dmesg"], check=True, capture_output=True, text=True).stdout
    assert f"{GPU}: attribute {attribute} refused: -{errno.errorcode[number]}" in log


def test_a_slice_shows_the_pci_ids_that_a_vm_finds(host: Sysfs) -> None:
    uuid = new_slice(host)
    assert (host.read(uuid, "vendor"), host.read(uuid, "device")) == ("0x1234", "0x5647")
