# SPDX-License-Identifier: Apache-2.0
"""The scheduler core of the kernel module in user space: `core` drives it, `_build` compiles it.

Importing this package has no prerequisites; importing `vgpumgr.sched.core` needs the compiled extension.
"""
