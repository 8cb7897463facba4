# SPDX-License-Identifier: Apache-2.0
"""Label selectors of lists: ``zone=a,rack=7`` selects objects with both labels."""

from typing import Annotated

from pydantic import AfterValidator, Field

from vgpumgr.wire.common import LABEL_KEY, LABEL_VALUE

SELECTOR_MAX = 16
_LABEL = f"{LABEL_KEY}={LABEL_VALUE}"


def parse_selector(text: str) -> dict[str, str]:
    """Return the labels of a Selector. Raises ValueError if a key occurs twice."""
    labels: dict[str, str] = {}
    for each in text.split(","):
        key, _, value = each.partition("=")
        if key in labels:
            raise ValueError(f"label {key} is given twice, and has one value")
        labels[key] = value
    return labels


def _parsed(text: str) -> str:
    parse_selector(text)
    return text


Selector = Annotated[
    str,
    Field(
        pattern=rf"^{_LABEL}(,{_LABEL}){{0,{SELECTOR_MAX - 1}}}$",
        description=f"only objects with all of these labels, at most {SELECTOR_MAX}: `zone=a,rack=7`",
        examples=["zone=a,rack=7"],
    ),
    AfterValidator(_parsed),
]
