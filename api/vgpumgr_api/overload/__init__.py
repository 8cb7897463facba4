# SPDX-License-Identifier: Apache-2.0
"""Protects the API from overload: limits of connections, request rates, failed logins, bodies in memory and turns."""
