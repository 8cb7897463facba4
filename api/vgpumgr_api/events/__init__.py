# SPDX-License-Identifier: Apache-2.0
"""The event log and the audit. `feed` and `watch` make many clients wait for the next change."""
