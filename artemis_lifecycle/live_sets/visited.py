"""Which commits a mark has visited. Belongs here: the interface, and its implementation in memory."""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple, Protocol


class Place(NamedTuple):
    """A commit is the `at`-th of chain number `chain`."""

    chain: int
    at: int


class VisitedCommits(Protocol):
    """The commits visited so far, each at one place. Called by several threads."""

    def place(self, commit: str) -> Place | None:
        """Return where the commit was visited; None if it was not."""

    def claim(self, commit: str, place: Place) -> Place:
        """Record that the commit is visited at `place`, unless it was visited before. Return its place."""


class VisitedInMemory:
    """About 200 bytes per commit."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._lock = Lock()

    def place(self, commit: str) -> Place | None:
        return self._places.get(commit)

    def claim(self, commit: str, place: Place) -> Place:
        with self._lock:
            return self._places.setdefault(commit, place)
