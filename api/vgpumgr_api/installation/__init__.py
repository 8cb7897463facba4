# SPDX-License-Identifier: Apache-2.0
"""This database and the replicas that serve it: its epoch, since when one has been alive, whether it can be used."""
