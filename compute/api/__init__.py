# SPDX-License-Identifier: Apache-2.0
"""Descriptions of the APIs that programs use, and the generator that turns them into C, tables and grammars."""
