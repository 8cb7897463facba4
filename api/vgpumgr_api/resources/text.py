# SPDX-License-Identifier: Apache-2.0
"""What others say in words."""


def printable(text: str) -> str:
    """Returns `text` without what PostgreSQL cannot store or a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
