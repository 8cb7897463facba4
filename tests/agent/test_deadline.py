# SPDX-License-Identifier: Apache-2.0
"""The hook answers in time and does nothing after its deadline."""

import errno
import json
import os
import socket
import threading
import time
from typing import Any
from uuid import UUID, uuid4

import pytest
from vgpumgr_agent.hook.server import HookServer, Limits
from vgpumgr_agent.refused import UnavailableError

from tests.agent.fakeapi import claim
from tests.agent.host import VM, A, B, Host


def test_prepare_answers_in_time_when_the_kernel_does_not(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgpumgr_agent.hook.admission._DECIDE_S", 1.0)
    claimed.kernel.fail["create"] = [errno.EEXIST] * 1000
    begun = time.monotonic()
    assert claimed.refused(A) == "host.not_ready"
    assert time.monotonic() - begun < 7


@pytest.mark.parametrize("devices", [(A,), (A, B)], ids=["the last of a VM", "the first of two"])
def test_what_is_made_after_the_hook_was_told_no_is_taken_back(
    claimed: Host, monkeypatch: pytest.MonkeyPatch, devices: tuple[UUID, ...]
) -> None:
    monkeypatch.setattr("vgpumgr_agent.hook.admission._DECIDE_S", 2)
    backend = claimed.agent.hooks._backend
    original = backend.prepare
    done = threading.Event()

    def prepare_slowly(*arguments: Any, **options: Any) -> bool:
        made = original(*arguments, **options)
        done.wait(30)
        return made

    monkeypatch.setattr(backend, "prepare", prepare_slowly)
    path = claimed.directory / "hook.sock"
    server = HookServer(path, claimed.agent.hooks, limits=Limits(decide_s=3), peer_uid=os.getuid())
    server.start()
    with socket.socket(socket.AF_UNIX) as libvirt, libvirt.makefile("rb") as stream:
        libvirt.connect(str(path))
        request = {"v": 1, "op": "prepare", "domain": "test", "vm_uuid": str(VM), "metadata": [], "reason": "-"}
        libvirt.sendall(json.dumps({**request, "devices": [str(uuid) for uuid in devices]}).encode() + b"\n")
        assert json.loads(stream.readline())["code"] == "agent.timeout"
    assert claimed.kernel.permit_s(str(A)) > 0
    done.set()
    deadline = time.monotonic() + 5
    while server.counters().open:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    server.close()
    assert claimed.slices() == set()


def test_a_device_that_was_permitted_without_an_answer_is_not_left_so(
    claimed: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = claimed.agent.hooks._backend
    original = backend.prepare

    def prepare_unheard(*arguments: Any, **options: Any) -> bool:
        original(*arguments, **options)
        raise UnavailableError("helper.unavailable", "no answer")

    monkeypatch.setattr(backend, "prepare", prepare_unheard)
    assert claimed.refused(A) == "host.not_ready"
    assert claimed.kernel.permit_s(str(A)) == 0


def test_nothing_is_bound_or_made_once_time_is_up(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed.api.set(slices=[*claimed.api.document.slices, claim(uuid := uuid4(), vm=None)])
    claimed.learn()
    monkeypatch.setattr("vgpumgr_agent.hook.admission._DECIDE_S", -1.0)
    assert claimed.refused(metadata=(uuid,)) == "agent.timeout"
    assert next(each.vm_uuid for each in claimed.api.document.slices if each.id == uuid) is None
    claimed.kernel.log.clear()
    assert claimed.refused(A) == "agent.timeout"
    assert claimed.kernel.log == []
