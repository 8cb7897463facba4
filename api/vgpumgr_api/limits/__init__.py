# SPDX-License-Identifier: Apache-2.0
"""Limits for clients: connections, request rates, failed logins, bodies in memory, and concurrent requests."""
