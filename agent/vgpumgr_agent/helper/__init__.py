# SPDX-License-Identifier: Apache-2.0
"""The root part of the host agent: it changes the kernel's state and does nothing else.

It uses no network and imports only the standard library and `vgpumgr.control`. The agent talks to a network, so the
helper does not trust it: every request is checked again here.

    protocol    operations, codes and the framing of both sides
    request     strict checks of what the agent sends
    records     which slices are ours, on disk
    operations  the operations, step by step
    removals    removing devices, which can block
    execution   which slices have executors, and with which settings
    executors   what both ways to run executors share
    units       executors under systemd
    processes   executors without systemd
    cgroups     cgroups of executors without systemd
    server      the socket
"""
