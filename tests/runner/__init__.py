# SPDX-License-Identifier: Apache-2.0
"""The parts of tests/run, which runs lanes of tests and reports how they ended."""
