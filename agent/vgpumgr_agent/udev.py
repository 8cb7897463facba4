# SPDX-License-Identifier: Apache-2.0
"""Notices GPUs that begin or cease to be shared: the kernel says MDEV_STATE=registered or unregistered.

A PCI function that came, or that a driver got or let go, may be a GPU that the host's configuration lists.
"""

import importlib
import logging
import threading
from collections.abc import Callable, Mapping

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
        if device is None:
            continue
        if state := device.properties.get("MDEV_STATE"):
            log.info("%s: mediated devices %s", device.sys_name, state)
        if state or concerns_binding(device.properties):
            changed()


def concerns_binding(properties: Mapping[str, str]) -> bool:
    """Whether an event may say that a listed GPU is to be bound, or is now.

    What somebody asked udev to do once more says nothing new, and the agent itself asks so.
    """
    if properties.get("SUBSYSTEM") != "pci":
        return False
    action = properties.get("ACTION")
    return action in ("bind", "unbind", "remove") or (action == "add" and "SYNTH_UUID" not in properties)
