# SPDX-License-Identifier: Apache-2.0
"""Policies that decide over seconds what the kernel's scheduler then enforces over microseconds.

Each file is one idea of the field: memory lanes, the order of jobs in a lane, deadlines with shedding, reservations
that follow demand, request and limit, soft limits. They act through weights, caps, reservations and parking of groups
(`terms.Terms`). Pure: no clock, no I/O; the caller passes the time (nanoseconds). Only the standard library and the
ranges of the kernel's parameters, so that the agent can use what the simulator proves. Bad input is a `ValueError` that
says what was wrong, and changes nothing.
"""
