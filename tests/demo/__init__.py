# SPDX-License-Identifier: Apache-2.0
"""`make demo`: two real guests, one accelerator, enforced shares and timeslices."""
