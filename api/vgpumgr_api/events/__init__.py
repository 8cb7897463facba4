# SPDX-License-Identifier: Apache-2.0
"""What happened: the event log and the audit. `feed` and `watch` let many clients wait for the next change."""
