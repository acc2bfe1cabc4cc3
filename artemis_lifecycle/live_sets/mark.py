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

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from artemis_lifecycle.catalogs.identifier import dotted
from artemis_lifecycle.catalogs.references import Content, Reference, ReferenceSource
from artemis_lifecycle.live_sets.policies import Cutoff, Policies
from artemis_lifecycle.live_sets.visited import Place, VisitedCommits, VisitedInMemory
from artemis_lifecycle.operations.live_sets import NO_SNAPSHOT, LiveVersion, SetReference
from artemis_lifecycle.storage.instants import microseconds
from artemis_lifecycle.storage.threads import threaded

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
    visited: VisitedCommits | None = None,
    threads: int = 4,
    check: Callable[[], None] = lambda: None,
) -> Marked:
    """Store in `found` every live version of every content, and the references with their heads.

    `references` are those to walk, instead of all that the source has. `check` is called for each reference, and may
    raise. Memory follows the number of different commits, not that of contents or references.

    Raises what `source` raises: then the set is incomplete, and must not be used.
    """
    walked = list(source.references() if references is None else references)
    found.add_references([SetReference(live_set_id, each.name, each.kind, each.head) for each in walked])
    walk = _Walk(source, found, live_set_id, VisitedInMemory() if visited is None else visited)

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
    def __init__(self, source: ReferenceSource, found: Versions, live_set_id: str, visited: VisitedCommits) -> None:
        self.chains: list[_Chain] = []
        self._source = source
        self._found = found
        self._live_set_id = live_set_id
        self._visited = visited
        self._lock = Lock()
        self._waiting: list[LiveVersion] = []
        self._seen: set[tuple[str, str, int]] = set()

    def reference(self, reference: Reference, cutoff: Cutoff) -> None:
        place: Place | None = self._visited.place(reference.head) or Place(self._new(reference).number, 0)
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
            claimed = self._visited.claim(commit.hash, place)
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
