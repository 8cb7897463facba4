# SPDX-License-Identifier: Apache-2.0
"""Experiments on a host that find out which settings a GPU and its stock driver really honour; a shim and loads."""
