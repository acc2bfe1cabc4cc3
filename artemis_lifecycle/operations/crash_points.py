"""Points at which a process may die.

Each durable write (Postgres, the object store, a catalog) is between a `before` and an `after` point. In production
`reach` does nothing. A test installs a callback, counts the points, raises at each of them in turn, and resumes: the
final state must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_callback: Callable[[str], None] | None = None


def reach(name: str) -> None:
    """Mark the point `name` as reached: does nothing unless a test has installed a callback, which may raise."""
    if _callback is not None:
        _callback(name)


@contextmanager
def around(name: str) -> Iterator[None]:
    """Put the points `<name>:before` and `<name>:after` around one durable write."""
    reach(f"{name}:before")
    yield
    reach(f"{name}:after")


@contextmanager
def installed(callback: Callable[[str], None]) -> Iterator[None]:
    """Call `callback` with the name of every point that this process reaches inside the block. For tests only."""
    global _callback
    previous = _callback
    _callback = callback
    try:
        yield
    finally:
        _callback = previous
