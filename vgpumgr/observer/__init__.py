# SPDX-License-Identifier: Apache-2.0
"""Who had the engine, recomputed from the scheduler's tracepoints alone, as a check of the kernel's own counters.

`trace` reads the tracepoints of a while; `account` adds them up and compares. Needs root and the tracing file system.
"""
