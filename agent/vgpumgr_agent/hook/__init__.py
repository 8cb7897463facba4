# SPDX-License-Identifier: Apache-2.0
"""The agent's side of libvirt's hook.

server     the socket that the hook connects to
request    strict checks of what the hook sends
service    the interface between the socket and the decisions
admission  which VM may start with which slices, and why other VMs may not
"""
