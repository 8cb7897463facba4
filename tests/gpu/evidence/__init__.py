# SPDX-License-Identifier: Apache-2.0
"""The experiments T1 to T10 and two real models, and the document with their results.

T1, T2, T4 and T10 are in `vgpumgr.gpu.shares`, because operators run them too.
"""
