# SPDX-License-Identifier: Apache-2.0
"""Advice for actions that only root may do. Root itself is not advised to become root."""

import os

_FORBIDDEN = "see the kernel's log for what AppArmor, SELinux or lockdown forbids"


def as_root(todo: str) -> str:
    """Return `todo`; for users other than root, add that root must do it."""
    return todo if os.geteuid() == 0 else f"{todo}, and run this as root"


def to_be_permitted() -> str:
    """Return the advice after a denied permission."""
    return _FORBIDDEN if os.geteuid() == 0 else "run this as root"
