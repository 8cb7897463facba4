# SPDX-License-Identifier: Apache-2.0
"""Engine use, recomputed from the scheduler's tracepoints alone, as a check of the kernel's own counters.

`trace` records the tracepoints for a while; `account` adds the runs up and compares. Needs root and the tracing file
system.
"""
