"""Mark: which versions of which contents the references of a catalog keep alive.

From the head of each reference, its commits are walked, newest first, until its policy's cutoff. Each live commit makes
the contents live that it puts. At the last live commit, the contents of all keys are live too: the last version that a
key got before the cutoff is what a reader sees until it is replaced.

Commits that references share are visited once, whatever their policies. Visited commits form chains: commits in a row
that one walk visited. A walk that meets a chain knows, by the times in it, whether its own cutoff is inside: then
everything that it would find is found. Otherwise it goes on where the chain ends, and makes it longer. So the result
does not depend on the order of references, and 1,000 branches of one log cost as much as their longest walk.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from artemis_lifecycle.catalogs.identifier import dotted, parse
from artemis_lifecycle.catalogs.references import TABLE, Commit, Content, Reference, ReferenceSource
from artemis_lifecycle.config.durations import format_duration, parse_duration
from artemis_lifecycle.config.names import fits
from artemis_lifecycle.errors import BadInput, NaiveDatetime
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.live_sets import NO_SNAPSHOT, LiveVersion, SetReference
from artemis_lifecycle.reachability.reached import Pointer
from artemis_lifecycle.storage.instants import in_calendar, microseconds
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

# --- policies ---------------------------------------------------------------------------------------------------------
# Cutoff policies: how far back the commits of a reference are live. Pure.
#
# The head of a reference is always live, as in Nessie's own garbage collector (`IdentifyLiveContents`). A reference
# that no pattern matches keeps its whole log.

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
    """Cutoffs by reference pattern, whose only wildcard is `*`, case-sensitive; the first match wins."""

    rules: tuple[tuple[str, Cutoff], ...] = ()

    def of(self, reference: str) -> Cutoff:
        return next((cutoff for pattern, cutoff in self.rules if fits(reference, pattern)), Cutoff())

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


# --- visited ----------------------------------------------------------------------------------------------------------
# Which commits a mark has visited.


class Place(NamedTuple):
    """A commit is the `at`-th of chain number `chain`."""

    chain: int
    at: int


_BATCH = 5_000
_REMEMBERED = 50_000


class Versions(Protocol):
    """Where a mark stores what it finds, such as `operations.live_sets.LiveSets`. Called by several threads."""

    def add_references(self, references: Sequence[SetReference]) -> None: ...

    def add_versions(self, versions: Sequence[LiveVersion]) -> None:
        """Store versions; the same version may come more than once."""


@dataclass(frozen=True)
class Marked:
    """What a mark read: references, and different commits."""

    references: int
    commits: int


def mark(
    source: ReferenceSource,
    policies: Policies,
    found: Versions,
    live_set_id: str,
    *,
    references: Sequence[Reference] | None = None,
    threads: int = 4,
    check: Callable[[], object] = lambda: None,
) -> Marked:
    """Store in `found` every live version of every content, and the references with their heads.

    `references` are those to walk, instead of all that the source has. `check` is called for each reference, and may
    raise. Memory follows the number of different commits, not that of contents or references.

    Raises what `source` raises: then the set is incomplete, and must not be used.
    """
    walked = list(source.references() if references is None else references)
    found.add_references([SetReference(live_set_id, each.name, each.kind, each.head) for each in walked])
    walk = _Walk(source, found, live_set_id)

    def each(reference: Reference) -> None:
        check()
        walk.reference(reference, policies.of(reference.name))

    for _ in threaded(each, walked, threads):
        pass
    for _ in threaded(walk.at_cutoff, walk.open_chains(), threads):
        check()
    walk.flush()
    return Marked(len(walked), sum(len(chain.times) for chain in walk.chains))


@dataclass
class _Chain:
    """Commits in a row. `end` is the last of them, or the head with which the walk begins. `joined` is where the log
    goes on in another chain; `is_whole` means that the log ends here."""

    number: int
    reference: str
    end: str
    times: array[int] = field(default_factory=lambda: array("q"))
    joined: Place | None = None
    is_whole: bool = False
    lock: Lock = field(default_factory=Lock)

    def times_from(self, at: int) -> NDArray[np.int64]:
        return np.array(self.times[at:], np.int64)


class _Walk:
    def __init__(self, source: ReferenceSource, found: Versions, live_set_id: str) -> None:
        self.chains: list[_Chain] = []
        self._source = source
        self._found = found
        self._live_set_id = live_set_id
        # Each commit at one place: about 200 bytes.
        self._visited: dict[str, Place] = {}
        self._lock = Lock()
        self._waiting: list[LiveVersion] = []
        self._seen: set[tuple[str, str, int]] = set()

    def reference(self, reference: Reference, cutoff: Cutoff) -> None:
        place: Place | None = self._visited.get(reference.head) or Place(self._new(reference).number, 0)
        walked = 0
        while place is not None:
            chain = self.chains[place.chain]
            # A log is a tree towards its root, and a walk waits only for chains on its way there: no two walks wait for
            # each other.
            with chain.lock:
                times = chain.times_from(place.at)
                live = cutoff.live(times, walked)
                walked += live
                if live < len(times):
                    return
                if chain.joined is None and not chain.is_whole:
                    walked += self._extend(chain, cutoff, walked)
                place = chain.joined

    def open_chains(self) -> list[_Chain]:
        """Return the chains in which a walk ended. Where one joins another, that one's end is further back."""
        return [chain for chain in self.chains if chain.joined is None and len(chain.times)]

    def at_cutoff(self, chain: _Chain) -> None:
        self._add(self._source.contents_at(chain.end), chain.reference)

    def flush(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        self._found.add_versions(waiting)

    def _new(self, reference: Reference) -> _Chain:
        with self._lock:
            self.chains.append(_Chain(len(self.chains), reference.name, reference.head))
            return self.chains[-1]

    def _extend(self, chain: _Chain, cutoff: Cutoff, walked: int) -> int:
        """Walk on from the end of `chain` while commits are live. Return how many there were."""
        commits = iter(self._source.commits(chain.end))
        if chain.times:
            next(commits, None)
        added = 0
        for commit in commits:
            time = microseconds(commit.committed_at)
            if not cutoff.live(np.array([time], np.int64), walked + added):
                return added
            place = Place(chain.number, len(chain.times))
            with self._lock:
                claimed = self._visited.setdefault(commit.hash, place)
            if claimed != place:
                chain.joined = claimed
                return added
            chain.times.append(time)
            chain.end = commit.hash
            added += 1
            self._add(commit.puts, chain.reference)
        chain.is_whole = True
        return added

    def _add(self, contents: Iterable[Content], reference: str) -> None:
        for versions in self._new_versions(contents, reference):
            self._found.add_versions(versions)

    def _new_versions(self, contents: Iterable[Content], reference: str) -> Iterator[list[LiveVersion]]:
        for content in contents:
            snapshot_id = NO_SNAPSHOT if content.snapshot_id is None else content.snapshot_id
            known = (content.content_id, content.metadata_location, snapshot_id)
            with self._lock:
                if known in self._seen:
                    continue
                if len(self._seen) >= _REMEMBERED:
                    # Only saves work: the repository takes the same version again.
                    self._seen.clear()
                self._seen.add(known)
                self._waiting.append(
                    LiveVersion(self._live_set_id, *known, dotted(content.key), content.type, reference)
                )
                full = self._waiting if len(self._waiting) >= _BATCH else []
                if full:
                    self._waiting = []
            if full:
                yield full


# --- plain ------------------------------------------------------------------------------------------------------------
# A catalog without references, as a source of them: each table is one reference, and each of its snapshots one commit
# with one put.


class PlainReferences:
    """Implements `catalogs.references.ReferenceSource` for a plain Iceberg catalog; `pointers` returns the rows of
    its tables by name. A head is a metadata file, and a commit is `<metadata file>#<snapshot id>`.

    Raises UnreadableMetadata for a metadata file that is missing or damaged.
    """

    def __init__(self, pointers: Callable[[], Mapping[str, Pointer]], stores: Stores) -> None:
        self._pointers = pointers
        self._stores = stores
        self._names: dict[str, str] = {}

    def references(self) -> Sequence[Reference]:
        pointers = self._pointers()
        self._names = {each.metadata_location: name for name, each in pointers.items()}
        return [Reference(name, "table", each.metadata_location) for name, each in sorted(pointers.items())]

    def commits(self, head: str) -> Iterator[Commit]:
        location, _, after = head.partition("#")
        metadata = self._metadata(location)
        newest_first = sorted(metadata.snapshots, key=lambda each: (each.timestamp_ms, each.snapshot_id), reverse=True)
        commits = [f"{location}#{each.snapshot_id}" for each in newest_first]
        start = commits.index(head) if after else 0
        for name, snapshot in zip(commits[start:], newest_first[start:], strict=True):
            puts = (self._content(metadata, snapshot.snapshot_id),)
            yield Commit(name, in_calendar(snapshot.timestamp_ms), puts)
        if not newest_first:
            # A new table: its metadata file is all that it has.
            yield Commit(location, in_calendar(metadata.last_updated_ms), (self._content(metadata, None),))

    def contents_at(self, commit: str) -> Iterator[Content]:
        """Yield the table as of its current snapshot, which every reader of the catalog sees."""
        metadata = self._metadata(commit.partition("#")[0])
        yield self._content(metadata, metadata.current_snapshot_id)

    def _metadata(self, location: str) -> TableMetadata:
        return read_table_metadata(self._stores, location)

    def _content(self, metadata: TableMetadata, snapshot_id: int | None) -> Content:
        key = parse(self._names[metadata.metadata_location]).parts
        return Content(metadata.table_uuid, key, TABLE, metadata.metadata_location, snapshot_id)
