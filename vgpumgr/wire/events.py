# SPDX-License-Identifier: Apache-2.0
"""What events can be about: the first part of an event's `kind`, as in ``slice.claimed``."""

from typing import Annotated

from pydantic import Field

ABOUT = ("epoch", "gpu", "host", "operation", "profile", "quota", "reservation", "slice", "tenant", "token")

About = Annotated[
    str,
    Field(
        pattern=rf"^({'|'.join(ABOUT)})(,({'|'.join(ABOUT)})){{0,{len(ABOUT) - 1}}}$",
        description=f"only events about these, with commas between them: {', '.join(ABOUT)}",
    ),
]
