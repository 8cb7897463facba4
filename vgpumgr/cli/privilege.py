# SPDX-License-Identifier: Apache-2.0
"""What to do about something that only root can: root itself is not told to become root."""

import os

_FORBIDDEN = "look in the kernel's log for what AppArmor, SELinux or lockdown forbids root"


def as_root(todo: str) -> str:
    """Return what to do, and for others than root that they are to do it as root."""
    return todo if os.geteuid() == 0 else f"{todo}, and run this as root"


def to_be_permitted() -> str:
    """Return what to do where permission was refused."""
    return _FORBIDDEN if os.geteuid() == 0 else "run this as root"
