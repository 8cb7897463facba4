# SPDX-License-Identifier: Apache-2.0
"""The lab: builds and boots throw-away hosts on which the whole of vgpumgr runs.

Everything expensive is content-addressed in a cache outside the checkout and built under a lock;
everything that belongs to one boot (initial RAM disk, logs) lives in a run directory and dies with it.
"""
