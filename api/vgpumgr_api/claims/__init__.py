# SPDX-License-Identifier: Apache-2.0
"""The life of a slice: profiles and reservations before it, the claim itself, its progress, deadlines and release."""
