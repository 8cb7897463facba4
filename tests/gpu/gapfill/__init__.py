# SPDX-License-Identifier: Apache-2.0
"""Gap fill on a GPU: the scheduler core's gap gate, in user space, decides when a process may launch its next work.

`gate` decides and has no clock. `channel` is the memory that a client and the gate share. `server` and `client` are
its two ends. `virtual` plays recorded or synthetic kernels through the same gate on a virtual clock. `models` and
`live` do the same on a real GPU. `python -m tests.gpu.gapfill` runs and prints all of it. See docs/gap-fill.md.
"""
