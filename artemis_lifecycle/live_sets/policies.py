"""Cutoff policies: how far back the commits of a reference are live. Pure.

The head of a reference is always live, as in Nessie's own garbage collector (`IdentifyLiveContents`). A reference that
no pattern matches keeps its whole log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from artemis_lifecycle.config.durations import format_duration, parse_duration
from artemis_lifecycle.errors import BadInput, NaiveDatetime
from artemis_lifecycle.storage.instants import microseconds

NONE = "none"
_COMMITS = re.compile(r"(\d+)(?:\s+commits?)?")

Given = int | str | timedelta | datetime | None
"""A cutoff as people write it: N commits (5, "5", "5 commits"), a duration ("30d"), an instant, or none: no cutoff."""


@dataclass(frozen=True)
class Cutoff:
    """Live are the newest `commits`, or the commits not older than `since`; with neither, all of them."""

    commits: int | None = None
    since: datetime | None = None

    def live(self, times: NDArray[np.int64], walked: int) -> int:
        """Return how many of the commits with these `times` (epoch microseconds, newest first) are live, if `walked`
        newer ones were."""
        if not len(times):
            return 0
        live = len(times)
        if self.commits is not None:
            live = self.commits - walked
        elif self.since is not None:
            old = times < microseconds(self.since)
            live = int(np.argmax(old)) if old.any() else len(times)
        return min(len(times), max(live, 1 if walked == 0 else 0))

    def keeps_all_of(self, other: Cutoff) -> bool:
        """Return True if every commit that is live by `other` is surely live by this one, too."""
        if self.commits is not None:
            return other.commits is not None and self.commits >= other.commits
        return self.since is None or (other.since is not None and self.since <= other.since)

    def __str__(self) -> str:
        if self.commits is not None:
            return f"{self.commits} commits"
        return NONE if self.since is None else self.since.isoformat()


@dataclass(frozen=True)
class Policies:
    """Cutoffs by reference pattern, as in `fnmatch`, case-sensitive; the first match wins."""

    rules: tuple[tuple[str, Cutoff], ...] = ()

    def of(self, reference: str) -> Cutoff:
        return next((cutoff for pattern, cutoff in self.rules if fnmatchcase(reference, pattern)), Cutoff())

    def keep_all_of(self, other: Policies) -> bool:
        """Return True if what `other` keeps is surely kept by these, too."""
        patterns = [[pattern for pattern, _ in rules] for rules in (self.rules, other.rules)]
        return not self.rules or (
            patterns[0] == patterns[1]
            and all(mine.keeps_all_of(theirs) for (_, mine), (_, theirs) in zip(self.rules, other.rules, strict=True))
        )

    def texts(self) -> tuple[str, ...]:
        """Return the rules as text, with the instants that durations became."""
        return tuple(f"{pattern}: {cutoff}" for pattern, cutoff in self.rules)


def policies_of(given: Mapping[str, Given] | Sequence[tuple[str, Given]] | None, now: datetime) -> Policies:
    """Return the policies as given: by pattern, in order. A duration ends at `now`. Raises BadInput, NaiveDatetime."""
    pairs = list(given.items()) if isinstance(given, Mapping) else list(given or ())
    return Policies(tuple((str(pattern), cutoff_of(cutoff, now)) for pattern, cutoff in pairs))


def cutoff_of(given: Given, now: datetime) -> Cutoff:
    """Raises BadInput for an invalid cutoff, or one after `now`; NaiveDatetime for an instant without a time zone."""
    if given is None or (isinstance(given, str) and given.strip().lower() == NONE):
        return Cutoff()
    if isinstance(given, bool) or (isinstance(given, int) and given < 0):
        raise _unusable(given)
    if isinstance(given, int):
        return Cutoff(commits=given)
    if isinstance(given, timedelta):
        return _ago(given, now)
    if isinstance(given, datetime):
        return _instant(given, now)
    if not isinstance(given, str):
        raise _unusable(given)
    text = given.strip()
    if (match := _COMMITS.fullmatch(text)) is not None:
        return Cutoff(commits=int(match[1]))
    try:
        return _ago(parse_duration(text), now)
    except ValueError:
        pass
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise _unusable(given) from None
    return _instant(instant, now)


def _ago(duration: timedelta, now: datetime) -> Cutoff:
    if duration < timedelta():
        raise _unusable(duration)
    try:
        return Cutoff(since=now - duration)
    except OverflowError:
        raise BadInput(f"A cutoff of {format_duration(duration)} is before all calendars", hint="write none") from None


def _instant(instant: datetime, now: datetime) -> Cutoff:
    if instant.tzinfo is None or instant.utcoffset() is None:
        raise NaiveDatetime(f"Cutoff {instant.isoformat()} has no time zone", hint="add one, e.g. Z")
    if instant > now:
        raise BadInput(
            f"Cutoff {instant.isoformat()} is in the future: only heads would stay live",
            hint="fix the instant; if only heads are meant, write 1",
        )
    return Cutoff(since=instant.astimezone(UTC))


def _unusable(given: object) -> BadInput:
    return BadInput(
        f"{given!r} is not a cutoff",
        hint="use a number of commits (5), a duration (30d), an instant with its time zone, or none",
    )
