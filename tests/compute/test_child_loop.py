# SPDX-License-Identifier: Apache-2.0
"""A child and its lease: its requests to the arbiter and when it works. Its backend sleeps for a kernel's duration."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute.executor_rig import (
    ECHO,
    EXPIRED,
    LENT,
    LIMIT_S,
    NONE,
    READY,
    RECALLED,
    WANT,
    WORK,
    YIELD,
    Child,
    Slice,
    StreamRequest,
    make_product,
    run_slice,
)

KERNEL = 77
# A time far in the future that is never reached.
LATER_NS = 10**18
SHORT_NS = 1000
# Longer than any test. Work of this length runs until the child is killed.
ENDLESS_NS = 10**15


@pytest.fixture
def tenant(tmp_path: Path) -> Iterator[Slice]:
    make_product()
    with run_slice(tmp_path) as slice_:
        yield slice_


def wait_until_dry(child: Child, lease: int) -> None:
    """Poll the child's page: under a lease that nobody else wants, the child makes no system call when it runs dry."""
    end = time.monotonic() + LIMIT_S
    while child.state != (lease, False):
        assert time.monotonic() < end, child.state
        time.sleep(0.001)


def wait_until_submitted(child: Child, count: int) -> None:
    end = time.monotonic() + LIMIT_S
    while child.submitted < count:
        assert time.monotonic() < end, child.submitted
        time.sleep(0.001)


def test_a_child_asks_once_and_works_only_under_a_lease(tenant: Slice) -> None:
    child = tenant.start()
    child.window.put(WORK, SHORT_NS, kernel_id=KERNEL)
    assert child.request() == StreamRequest(READY, 0, 0, KERNEL, SHORT_NS)
    # Queries are answered at any time. More work causes no second request.
    child.window.put(WORK, SHORT_NS, kernel_id=KERNEL)
    child.window.put(ECHO, 1)
    assert child.window.reply().op == ECHO
    assert not child.has_request()
    assert (child.submitted, child.state) == (0, (0, False))
    tenant.set_lease(1, LENT)
    assert [child.window.reply().op for _ in range(2)] == [WORK, WORK]
    wait_until_dry(child, 1)
    assert (child.submitted, child.finished) == (2, 2)
    assert not child.has_request()


def test_under_a_lease_that_nobody_else_wants_a_child_starts_again_by_itself(tenant: Slice) -> None:
    child = tenant.start()
    tenant.set_lease(1, LENT)
    for _ in range(20):
        child.window.ask(WORK, SHORT_NS)
    wait_until_dry(child, 1)
    assert not child.has_request()


def test_a_dry_child_yields_a_lease_that_has_an_end(tenant: Slice) -> None:
    child = tenant.start()
    tenant.set_lease(1, LENT, expires_ns=LATER_NS)
    child.window.ask(WORK, SHORT_NS)
    assert child.request() == StreamRequest(YIELD, 0, 1, 0, 0)


def test_a_recalled_lease_is_yielded_when_dry_and_not_started_under(tenant: Slice) -> None:
    child = tenant.start()
    tenant.set_lease(1, LENT)
    child.window.put(WORK, 50_000_000)
    wait_until_submitted(child, 1)
    tenant.set_lease(1, RECALLED, expires_ns=LATER_NS)
    # The child stays busy and does work that is queued meanwhile under the same lease.
    child.window.put(WORK, SHORT_NS)
    assert [child.window.reply().op for _ in range(2)] == [WORK, WORK]
    request = child.request()
    assert (request.op, request.flags, request.lease) == (YIELD, 0, 1)
    child.window.put(WORK, SHORT_NS)
    assert child.request().op == READY
    assert child.submitted == 2


def test_an_expired_lease_is_yielded_with_the_wish_for_more(tenant: Slice) -> None:
    child = tenant.start()
    tenant.set_lease(1, LENT, expires_ns=LATER_NS)
    for _ in range(3):
        child.window.put(WORK, 30_000_000, kernel_id=KERNEL, ring=False)
    child.window.publish(child.window.tail)
    wait_until_submitted(child, 2)
    tenant.set_lease(1, EXPIRED, expires_ns=0)
    assert [child.window.reply().op for _ in range(2)] == [WORK, WORK]
    assert child.request() == StreamRequest(YIELD, WANT, 1, KERNEL, 30_000_000)
    assert (child.submitted, child.state) == (2, (1, False))
    tenant.set_lease(2, LENT)
    assert child.window.reply().op == WORK


def test_what_would_outlast_a_lease_waits_for_the_next(tenant: Slice) -> None:
    child = tenant.start()
    for _ in range(2):
        child.window.put(WORK, 40_000_000, ring=False)
    child.window.put(WORK, ENDLESS_NS, ring=False)
    child.window.publish(child.window.tail)
    assert child.request().op == READY
    tenant.set_lease(1, LENT, expires_ns=time.monotonic_ns() + 20 * 10**9)
    assert [child.window.reply().op for _ in range(2)] == [WORK, WORK]
    request = child.request()
    assert (request.op, request.flags, request.lease) == (YIELD, WANT, 1)
    assert child.submitted == 2
    # The work fits into no lease, so it may run when it is the first work of a lease.
    tenant.set_lease(1, NONE)
    tenant.set_lease(2, LENT, expires_ns=time.monotonic_ns() + 20 * 10**9)
    wait_until_submitted(child, 3)


def test_a_lease_that_is_gone_before_the_child_has_started_is_asked_for_again(tenant: Slice) -> None:
    child = tenant.start()
    child.window.put(WORK, SHORT_NS)
    assert child.request().op == READY
    tenant.freeze()
    tenant.set_lease(1, LENT)
    tenant.set_lease(1, NONE)
    tenant.thaw()
    assert child.request().op == READY
    tenant.set_lease(2, LENT)
    assert child.window.reply().op == WORK


def test_a_frozen_child_goes_on_under_the_next_lease_without_a_drain(tenant: Slice) -> None:
    child = tenant.start()
    tenant.set_lease(1, LENT, expires_ns=LATER_NS)
    child.window.put(WORK, ENDLESS_NS)
    wait_until_submitted(child, 1)
    tenant.set_lease(1, EXPIRED, expires_ns=0)
    tenant.freeze()
    tenant.set_lease(1, NONE)
    tenant.set_lease(2, LENT, expires_ns=LATER_NS)
    tenant.thaw()
    child.window.put(WORK, ENDLESS_NS)
    wait_until_submitted(child, 2)
    assert child.state == (2, True)
    assert not child.has_request()


def test_a_reset_ends_busy_and_idle_children(tenant: Slice) -> None:
    busy = tenant.start()
    tenant.set_lease(1, LENT)
    # This child sees no change of the lease page before the reset.
    idle = tenant.start()
    busy.window.put(WORK, ENDLESS_NS)
    wait_until_submitted(busy, 1)
    tenant.reset()
    for child in (idle, busy):
        assert tenant.wait_for_exit(child.number).reason == "the slice was reset"
        assert child.window.state == 2
    assert tenant.start().window.ask(ECHO, 1).value == 0


def test_idle_time_is_what_passed_without_work_under_a_lease(tenant: Slice) -> None:
    child = tenant.start()
    before = time.monotonic_ns()
    tenant.set_lease(1, LENT)
    child.window.ask(WORK, SHORT_NS)
    wait_until_dry(child, 1)
    child.window.ask(WORK, SHORT_NS)
    idle = int(child.stream.wholes[2])
    assert 0 < idle < time.monotonic_ns() - before


def test_a_spinning_child_serves_too(tmp_path: Path) -> None:
    make_product()
    with run_slice(tmp_path, "--spin-us", "50") as slice_:
        child = slice_.start()
        slice_.set_lease(1, LENT)
        for _ in range(50):
            child.window.ask(WORK, SHORT_NS)
