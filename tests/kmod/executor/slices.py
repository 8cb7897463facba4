# SPDX-License-Identifier: Apache-2.0
"""Slices of an accelerator that is lent to executors, which a test uses as their guests do."""

from contextlib import ExitStack

from tests.rig.gpu import Gpu, poll
from tests.rig.ring import CHANNEL_IOVA, LAUNCH, REG_COMPLETED, REG_ERROR, Completion, Guest, descriptor
from tests.rig.vfio import Device, opened

LONG_US = 10_000_000
"""max_chunk with which nothing is revoked."""


class Slice:
    """A slice that this process uses as its guest does, with a channel."""

    def __init__(self, gpu: Gpu, stack: ExitStack, tenant: str, uuid: str | None = None) -> None:
        self.gpu = gpu
        gpu.tenant(tenant, weight=100, timeslice_us=1000)
        self.uuid = uuid or gpu.slice(tenant)
        self.device: Device = stack.enter_context(opened(self.uuid))
        self.guest = Guest()
        self.guest.attach(self.device)
        self.enable()

    def enable(self) -> None:
        self.guest.enable(self.device, channel_at=CHANNEL_IOVA)

    def launch(self, *args: int, op: int = LAUNCH) -> int:
        """Submit an item; its number."""
        self.guest.submit(self.device, descriptor(op, args=args))
        return self.guest.tail - 1

    def is_done(self, number: int) -> bool:
        return self.device.register(REG_COMPLETED) > number

    def done(self, number: int) -> Completion:
        """The completion of an item, once it is there."""
        poll(lambda: self.is_done(number))
        return self.guest.completion(number)

    def run_ns(self) -> int:
        return self.gpu.slice_stats(self.uuid).run_ns

    def error(self) -> int:
        """Why the slice stopped, once it has."""
        poll(lambda: self.device.register(REG_ERROR) != 0)
        return self.device.register(REG_ERROR)
