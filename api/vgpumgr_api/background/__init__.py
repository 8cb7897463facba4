# SPDX-License-Identifier: Apache-2.0
"""What every replica does without being asked: periodic jobs, and advancing operations (`operating`)."""
