# SPDX-License-Identifier: Apache-2.0
"""Watches for GPUs that start or stop being shared: the kernel sends MDEV_STATE=registered or unregistered.

It also watches PCI functions that appear, or that a driver binds or unbinds: they may be GPUs that the host's
configuration lists.
"""

import importlib
import logging
import threading
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)


def watch(changed: Callable[[], None], stop: threading.Event) -> None:
    """Call `changed` for each such event until `stop` is set. Without udev return at once: the agent polls too."""
    try:
        pyudev = importlib.import_module("pyudev")
        monitor = pyudev.Monitor.from_netlink(pyudev.Context())
        monitor.start()
    except (ImportError, OSError) as error:
        log.warning("GPUs that are added later are found only at the next report: no udev (%s)", error)
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
    """Return whether an event may mean that a listed GPU needs binding, or is bound now.

    Synthetic add events are ignored: they carry no news, and the agent itself triggers them.
    """
    if properties.get("SUBSYSTEM") != "pci":
        return False
    action = properties.get("ACTION")
    return action in ("bind", "unbind", "remove") or (action == "add" and "SYNTH_UUID" not in properties)
