# SPDX-License-Identifier: Apache-2.0
"""Work that every replica does without a request: periodic jobs, and steps of operations (`operating`)."""
