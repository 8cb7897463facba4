# SPDX-License-Identifier: Apache-2.0
"""Reports a service's state to systemd: the protocol of sd_notify(3). Outside a unit it does nothing."""

import contextlib
import os
import socket


def notify(*, ready: bool = False, status: str = "", watchdog: bool = False, stopping: bool = False) -> None:
    """Send the given states; `watchdog` resets the timer of WatchdogSec=. Never raises."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    said = {"READY": ready, "WATCHDOG": watchdog, "STOPPING": stopping}
    lines = [f"{name}=1" for name, given in said.items() if given]
    if status:
        lines.append("STATUS=" + " ".join(status.split()))
    if not address or not lines:
        return
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto("\n".join(lines).encode(), address)
