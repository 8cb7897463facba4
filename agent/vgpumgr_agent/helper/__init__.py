# SPDX-License-Identifier: Apache-2.0
"""The root part of the host agent: it changes the kernel's state and does nothing else.

It speaks to no network, imports the standard library and `vgpumgr.control` only, and trusts its caller with nothing:
the agent talks to a network, so what it asks for is checked again here.

    protocol    operations, codes and the framing of both sides
    request     strict checks of what the agent sends
    records     which slices are ours, on disk
    operations  what is done, step by step
    removals    removing devices, which can block
    execution   which slices have executors, and with what settings
    executors   what both ways to run them have in common
    units       executors under systemd
    processes   executors without it
    cgroups     what systemd would make for them
    server      the socket
"""
