# SPDX-License-Identifier: Apache-2.0
"""Notices GPUs that begin or cease to be shared: the kernel says MDEV_STATE=registered or unregistered."""

import importlib
import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


def watch(changed: Callable[[], None], stop: threading.Event) -> None:
    """Call `changed` for each such event until `stop`. Without udev it returns at once: everything is polled too."""
    try:
        pyudev = importlib.import_module("pyudev")
        monitor = pyudev.Monitor.from_netlink(pyudev.Context())
        monitor.start()
    except (ImportError, OSError) as error:
        log.warning("GPUs that come later are found at the next report only: no udev (%s)", error)
        return
    while not stop.is_set():
        device = monitor.poll(timeout=1.0)
        if device is not None and device.properties.get("MDEV_STATE"):
            log.info("%s: mediated devices %s", device.sys_name, device.properties["MDEV_STATE"])
            changed()
