# SPDX-License-Identifier: Apache-2.0
"""What tests and the demo stand on inside a lab host: module, accelerator, tenants, clients, guests.

Everything here runs as root in a lab host (tests/lab/README.md) on its own Python; nothing is imported by the product.
"""
