# SPDX-License-Identifier: Apache-2.0
"""How much a client may ask at once: connections, rates, failed logins, bodies in memory, and turns to be worked at."""
