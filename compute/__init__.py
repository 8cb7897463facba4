# SPDX-License-Identifier: Apache-2.0
"""Runs work on an accelerator for programs that do not hold it. The Python code here only generates and describes."""
