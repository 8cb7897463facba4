# SPDX-License-Identifier: Apache-2.0
"""Policies that decide over seconds what the kernel's scheduler enforces over microseconds.

Each file implements one idea from the literature: memory lanes, the order of jobs in a lane, deadlines with shedding,
reservations that follow demand, request and limit, soft limits. They act through weights, caps, reservations and
parking of groups (`terms.Terms`). Pure: no clock, no I/O; the caller passes the time (nanoseconds). They use only the
standard library and the ranges of the kernel's parameters, so the agent can use exactly what the simulator has tested.
Bad input raises a `ValueError` that says what was wrong, and changes nothing.
"""
