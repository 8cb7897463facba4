# SPDX-License-Identifier: Apache-2.0
"""What a GPU reports about itself, and its settings."""

import errno

import pytest

from tests.kmod.control.given import new_slice
from tests.rig.gpu import ADDRESS as GPU
from tests.rig.kernel import kernel_log
from tests.rig.settings import refusal, unchanged
from vgpumgr.control.netlink import Control
from vgpumgr.control.sysfs import Sysfs
from vgpumgr.errors import (
    AlreadyExistsError,
    BusyError,
    NoCapacityError,
)


def test_a_gpu_tells_what_it_is(control: Control, host: Sysfs) -> None:
    (gpu,) = control.gpus()
    assert gpu.name == control.gpu(GPU).name == GPU
    assert host.gpus() == [GPU]
    assert gpu.engine == host.read_gpu(GPU, "engine") == "soft"
    assert gpu.attach == host.read_gpu(GPU, "attach") == "any"
    assert gpu.memory_total_bytes == int(host.read_gpu(GPU, "memory_total"))
    assert gpu.max_chunk_us == int(host.read_gpu(GPU, "max_chunk_us"))
    assert gpu.timeslice_min_us == int(host.read_gpu(GPU, "timeslice_min_us"))
    assert host.read_gpu(GPU, "abi_version") == "2.0"
    assert host.read_gpu(GPU, "serial") == ""  # none of these functions has one
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


GPU_FAULTS = [
    ("attach", "never", errno.EINVAL),
    ("max_chunk_us", "-1", errno.EINVAL),
    ("memory_total", "all", errno.EINVAL),
    ("memory_total", "4096", errno.ERANGE),
    ("places", "4294967296", errno.ERANGE),
]
POLICY_FAULTS = [
    ("best", errno.EINVAL, "policy"),
    ("fixed_share", errno.ERANGE, "places"),
    ("fixed_share places=some", errno.EINVAL, "places"),
    ("fixed_share places=10001", errno.ERANGE, "places"),
    ("fixed_share seats=2", errno.EINVAL, "seats"),
    ("equal_share places", errno.EINVAL, "places"),
    ("equal_share =4", errno.EINVAL, "policy"),
]


@pytest.mark.usefixtures("quiet_log")
@pytest.mark.parametrize(("attribute", "text", "number"), GPU_FAULTS)
def test_the_log_names_gpu_and_attribute_that_a_bad_value_was_written_to(
    control: Control, host: Sysfs, attribute: str, text: str, number: int
) -> None:
    with unchanged(control, host):
        assert refusal(lambda: host.write_gpu(GPU, attribute, text)).errno == number
    assert f"{GPU}: attribute {attribute} refused: -{errno.errorcode[number]}" in kernel_log()


@pytest.mark.usefixtures("quiet_log")
@pytest.mark.parametrize(("text", "number", "field"), POLICY_FAULTS)
def test_the_log_names_which_part_of_a_policy_is_bad(
    control: Control, host: Sysfs, text: str, number: int, field: str
) -> None:
    before = kernel_log()
    with unchanged(control, host):
        assert refusal(lambda: host.write_gpu(GPU, "policy", text)).errno == number
    said = kernel_log().removeprefix(before)
    assert f"{GPU}: attribute policy refused for {field}: -{errno.errorcode[number]}\n" in said


@pytest.mark.usefixtures("quiet_log")
def test_the_log_names_a_policy_that_its_tenants_do_not_allow(control: Control, host: Sysfs) -> None:
    control.set_tenant(GPU, "blue", weight=100, timeslice_us=1000)
    before = kernel_log()
    with unchanged(control, host):
        assert refusal(lambda: host.write_gpu(GPU, "policy", "equal_share")).errno == errno.EBUSY
    assert f"{GPU}: attribute policy refused for policy: -EBUSY\n" in kernel_log().removeprefix(before)
