# SPDX-License-Identifier: Apache-2.0
"""Real work on an accelerator that the program does not hold; what is Python here only generates and describes."""
