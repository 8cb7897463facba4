# SPDX-License-Identifier: Apache-2.0
"""What tests and the demo use inside a lab host: module, accelerator, tenants, clients, guests.

Everything here runs as root in a lab host (tests/lab/README.md) on the host's Python. The product imports none of it.
"""
