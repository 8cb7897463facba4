# SPDX-License-Identifier: Apache-2.0
"""Valid requests to the root helper, for tests that send them directly."""

import time
from typing import Any

import pytest
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.refused import Refused

from tests.agent.fakekernel import GPU

UUID = "c0ffee00-0000-4000-8000-000000000001"
OTHER = "c0ffee00-0000-4000-8000-000000000002"
VM = "c0ffee00-0000-4000-8000-0000000000aa"
GROUP: dict[str, Any] = {
    "gpu": GPU,
    "tenant": "blue",
    "weight": 300,
    "timeslice_us": 1000,
    "cap_us": 0,
    "cap_period_us": 0,
    "mode": "fair",
    "band": "fair",
    "reserve_us": 0,
    "reserve_period_us": 0,
}
SLICE: dict[str, Any] = {
    "uuid": UUID,
    "gpu": GPU,
    "mdev_type": "vgpumgr-mem16m",
    "tenant": "blue",
    "vm_uuid": VM,
    "weight": 300,
    "cap_us": 3000,
    "cap_period_us": 10_000,
    "memory_max_bytes": 0,
    "tasks_max": 0,
    "cpu_max_permille": 0,
}
PLACE = {
    **{name: SLICE[name] for name in ("uuid", "tenant", "weight", "cap_us", "cap_period_us")},
    "timeslice_us": 2000,
    "mem_bytes": 1 << 30,
}
VALID: dict[str, dict[str, Any]] = {
    "observe": {},
    "bind": {"gpu": GPU},
    "configure": GROUP,
    "forget_group": {"gpu": GPU, "tenant": "blue"},
    "prepare": SLICE,
    "apply": {name: SLICE[name] for name in ("uuid", "tenant", "weight", "cap_us", "cap_period_us")},
    "renew": {"uuid": UUID},
    "withdraw": {"uuid": UUID},
    "remove": {"uuid": UUID, "vm_gone": False, "withdraw": True},
    "execute": {"uuid": UUID},
    "halt": {"uuid": UUID},
    "admit": {"gpu": GPU, "claims": [PLACE]},
    "dismiss": {"uuid": UUID},
    "adopt": {"uuid": UUID},
}


def refusal(helper: HelperClient, operation: str, **members: Any) -> str:
    with pytest.raises(Refused) as refused:
        helper.call(operation, **members)
    return refused.value.code


def remove(helper: HelperClient, *, vm_gone: bool = False, withdraw: bool = False) -> str:
    return str(helper.call("remove", uuid=UUID, vm_gone=vm_gone, withdraw=withdraw)["state"])


def until(condition: Any, timeout_s: float = 5) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
