# SPDX-License-Identifier: Apache-2.0
"""The life of a slice: profiles and reservations before it, then the claim, its progress, deadlines and release."""
