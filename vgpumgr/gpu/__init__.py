# SPDX-License-Identifier: Apache-2.0
"""What a GPU and its stock driver really honour: a shim, loads, and experiments that run on a host."""
