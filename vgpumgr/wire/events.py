# SPDX-License-Identifier: Apache-2.0
"""The subjects of events: the first part of an event's `kind`, as in ``slice.claimed``."""

from typing import Annotated

from pydantic import AfterValidator, Field

ABOUT = ("epoch", "gpu", "host", "operation", "profile", "quota", "reservation", "slice", "tenant", "token")

Kind = Annotated[str, Field(pattern=r"^[a-z_]{1,31}\.[a-z_]{1,32}$")]
"""The kind of an event, of an action in the audit, or of an operation: its subject, and what happens to the subject."""


def _known(text: str) -> str:
    words = text.split(",")
    if len(words) > len(ABOUT) or not set(words) <= set(ABOUT):
        raise ValueError(f"not one or more of {', '.join(ABOUT)}, separated by commas")
    return text


About = Annotated[
    str,
    AfterValidator(_known),
    Field(
        description=f"only events about these kinds of objects, separated by commas: {', '.join(ABOUT)}",
        # For the documentation; the validator reports a violation in words.
        json_schema_extra={"pattern": rf"^({'|'.join(ABOUT)})(,({'|'.join(ABOUT)})){{0,{len(ABOUT) - 1}}}$"},
    ),
]
