# SPDX-License-Identifier: Apache-2.0
"""Runs a story under leases, like `host` does for items.

The arbiter lends the engine to a slice and reviews the lease a margin before its end and whenever an event has
happened. It takes the lease back when the slice yields or the gate has closed. The slice executes its items one after
another. An item under way when its lease expires goes on until it is done or the gate closes; the next lease continues
it. A slice whose lease has no end reports nothing when it has no more work, and starts again by itself.
"""

from __future__ import annotations

import heapq
from typing import Any

from tests.sched.host import Device, Host
from tests.sched.lease_model import LeaseModel
from tests.sched.story import US, Story
from vgpumgr.sched.core import ItemInfo, Lease, Yield

MARGIN_NS = 50 * US


class Arbiter(Host):
    """`leases` counts the leases lent, `stops` those after which the same slice continued at once."""

    model: LeaseModel | None

    def __init__(self, story: Story, **options: Any) -> None:
        self.lease: Lease | None = None
        self.unused_ns = 0
        self.leases = 0
        self.stops = 0
        self.last_holder: Device | None = None
        self.is_withdrawn = False
        engine = story.engine
        self.close_ns = 0 if engine.splits else engine.max_chunk_ns - engine.min_chunk_ns
        super().__init__(story, **options)

    def make_model(self) -> LeaseModel:
        return LeaseModel(self.story.engine, 0)

    def run(self) -> Arbiter:
        while self.now < self.story.duration_ns:
            lease = self.lend()
            if lease.slice is not None:
                self.hold(self.devices[lease.slice])
            else:
                times = [self.story.duration_ns]
                if self.agenda:
                    times.append(self.agenda[0][0])
                if lease.review_at_ns is not None:
                    times.append(self.here(lease.review_at_ns))
                self.last_holder = None
                self.pass_until(min(times))
        self.core.advance(self.clock())
        if self.model is not None:
            self.model.advance(self.now)
        self.check_sums()
        return self

    def here(self, at_ns: int) -> int:
        """Convert a time of the core into one of the story."""
        return self.now + (at_ns - self.clock() + 2**63) % 2**64 - 2**63

    # ---- leases

    def lend(self) -> Lease:
        lease = self.core.lend(self.clock())
        device = self.devices[lease.slice] if lease.slice is not None else None
        payer = self.devices[lease.payer] if lease.payer is not None else None
        if self.model is not None:
            self.model.lent(self.now, lease, device.model if device else None, payer.model if payer else None)
        self.lease = lease if device else None
        if device is not None:
            self.leases += 1
            self.stops += device is self.last_holder
            self.last_holder = device
        self.note(lease)
        return lease

    def review(self) -> None:
        self.settle()
        self.lease = self.core.review(self.clock())
        if self.model is not None:
            self.model.reviewed(self.now, self.lease)
        self.note(self.lease)

    def note(self, lease: Lease) -> None:
        expires_ns = None if lease.expires_ns is None else self.here(lease.expires_ns)
        self.transcript.append((self.now, lease.slice and lease.slice.name, expires_ns, lease.band, lease.idle))
        if lease.ended is not None:
            self.check_run(lease.ended)
        self.note_reserves()
        self.check_sums()
        if self.model is not None:
            self.check_lags()
        if self.at_pick is not None:
            self.at_pick(self)

    def settle(self) -> None:
        """Report unused time, before any other call."""
        if self.unused_ns:
            self.core.unused(self.unused_ns, self.clock())
            if self.model is not None:
                self.model.unused(self.unused_ns, self.now)
        self.unused_ns = 0

    @property
    def expires(self) -> int | None:
        assert self.lease is not None
        return None if self.lease.expires_ns is None else self.here(self.lease.expires_ns)

    # ---- who has a lease

    def hold(self, device: Device) -> None:
        self.running = device
        self.stay_start = self.now
        self.is_withdrawn = False
        while self.now < self.story.duration_ns:
            finished = self.step(device)
            if self.running is not device:
                self.lease = None
                return
            if self.is_over(device, finished):
                break
            self.review()
            if self.is_over(device, False):
                break
        if self.now < self.story.duration_ns:
            self.give_back(device)
        self.settle()

    def step(self, device: Device) -> bool:
        """Run until the next event; returns whether an item was finished."""
        assert self.lease is not None
        times = [self.story.duration_ns]
        if self.agenda:
            times.append(self.agenda[0][0])
        if device.is_awake:
            times.append(self.now + device.left_ns)
        if self.expires is not None:
            ends = (self.expires - MARGIN_NS, self.expires, self.expires + self.close_ns)
            times += [at for at in ends if at > self.now]
        if self.lease.review_at_ns is not None and self.here(self.lease.review_at_ns) > self.now:
            times.append(self.here(self.lease.review_at_ns))
        ns = max(0, min(times) - self.now)
        self.now += ns
        if device.is_awake:
            device.left_ns -= ns
        elif not self.is_withdrawn:
            self.unused_ns += ns
        finished = device.is_awake and not device.left_ns
        if finished:
            self.finish(device)
        while self.agenda and self.agenda[0][0] <= self.now and self.running is device:
            self.settle()
            heapq.heappop(self.agenda)[2]()
        return finished

    def finish(self, device: Device) -> None:
        device.done += 1
        device.next_item()
        work = device.work
        if work.nap_every and device.done % work.nap_every == 0:
            device.is_awake = False
            self.at(self.now + work.nap_ns, lambda: self.wake(device))

    def is_over(self, device: Device, finished: bool) -> bool:
        if self.expires is None:
            return self.is_withdrawn
        if not device.is_awake:
            return True
        if self.now < self.expires:
            return False
        return finished or device.work.splittable or self.now >= self.expires + self.close_ns

    def give_back(self, device: Device) -> None:
        self.settle()
        last, first = (device.work.item(max(0, device.done - n)) for n in (1, 0))
        if device.is_awake:
            how = Yield(want=True, kernel_id=first.kernel_id, hint_ns=first.hint_ns) if first else Yield(want=True)
        else:
            how = Yield(more=last.more, kernel_id=last.kernel_id) if last else Yield()
        self.core.yield_lease(device.core, self.clock(), how)
        if self.model is not None and device.model is not None:
            self.model.yielded(device.model, self.now, how)
        self.note_stay()
        self.running = self.lease = None

    # ---- what happens

    def say(self, device: Device, item: ItemInfo | None) -> None:
        device.is_awake = True
        if device is self.running and self.expires is None and not self.is_withdrawn:
            return
        first = None if item is None else ItemInfo(kernel_id=item.kernel_id, hint_ns=item.hint_ns)
        self.core.ready(device.core, self.clock(), first=first)
        if self.model is not None and device.model is not None:
            self.model.ready(device.model, self.now, first)

    def sleep(self, device: Device) -> None:
        super().sleep(device)
        self.is_withdrawn |= device is self.running
