# SPDX-License-Identifier: Apache-2.0
"""Gap fill on a GPU: the scheduler core's gap gate, in user space, decides when a process may launch its next work.

`gate` decides and knows no clock; `channel` is the memory that a client and the gate share; `server` and `client` are
the two ends; `virtual` plays recorded or synthetic kernels on a clock of its own through the same gate; `models` and
`live` are the same on a real GPU. `python -m tests.gpu.gapfill` runs and prints it. See docs/gap-fill.md.
"""
