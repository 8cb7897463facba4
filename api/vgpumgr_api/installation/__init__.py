# SPDX-License-Identifier: Apache-2.0
"""This database and the replicas that serve it: epoch, liveness and health."""
