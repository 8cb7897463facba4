# SPDX-License-Identifier: Apache-2.0
"""Text from clients and hosts."""


def printable(text: str) -> str:
    """Returns `text` with "?" for characters that PostgreSQL cannot store or a terminal would interpret."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
