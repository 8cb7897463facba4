# SPDX-License-Identifier: Apache-2.0
"""The experiments T1 to T10 and two real models, and the document they end in.

T1, T2, T4 and T10 are those that operators run, `vgpumgr.gpu.shares`.
"""
