# SPDX-License-Identifier: Apache-2.0
"""A temporary listener for SQLAlchemy events."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event


@contextmanager
def hearing(target: Any, what: str, listener: Callable[..., Any]) -> Iterator[None]:
    """Calls `listener` for each event `what` of `target` while the body runs."""
    event.listen(target, what, listener)
    try:
        yield
    finally:
        event.remove(target, what, listener)
