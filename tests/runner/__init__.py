# SPDX-License-Identifier: Apache-2.0
"""What tests/run is made of: it runs lanes of tests and says how they ended."""
