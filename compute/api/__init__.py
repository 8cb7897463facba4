# SPDX-License-Identifier: Apache-2.0
"""Descriptions of the APIs that programs use, and the generator that makes C, tables and grammars of them."""
