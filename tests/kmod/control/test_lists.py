# SPDX-License-Identifier: Apache-2.0
"""Lists of netlink while slices come and go, and who may request them."""

import os
import threading

from tests.kmod.control.given import GOOD, new_slice
from tests.rig.gpu import ADDRESS as GPU
from tests.rig.settings import refusal, unchanged
from vgpumgr.control import wire
from vgpumgr.control.netlink import Control
from vgpumgr.control.protocol import Command, SliceAttribute
from vgpumgr.control.sysfs import Sysfs
from vgpumgr.errors import (
    NotPermittedError,
)


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
        except BaseException as error:  # an assertion of the main thread reports the error
            failures.append(error)

    churners = [threading.Thread(target=churn) for _ in range(2)]
    for thread in churners:
        thread.start()
    try:
        request = wire.encode_attribute(SliceAttribute.GPU, wire.encode_value("string", GPU))
        for _ in range(60):
            # one attempt each: it lists every object that stays, whichever others come and go
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
    """Run it in a child process without root, which inherits no socket."""
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
