"""The walk of commit logs, against a model that walks each reference alone and from the start."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artemis_lifecycle.catalogs.references import TABLE, Commit, Content, Reference
from artemis_lifecycle.errors import BadInput, NaiveDatetime, UnreadableMetadata
from artemis_lifecycle.live_sets.mark import Cutoff, Policies, cutoff_of, mark, policies_of
from artemis_lifecycle.operations.live_sets import LiveVersion, SetReference

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Log:
    """Commits as a tree; commit n is one minute younger than commit n-1. Each puts or drops one key."""

    parents: list[int]
    keys: list[tuple[str, bool]]
    heads: dict[str, int]
    asked: Counter[str] = field(default_factory=Counter)
    broken: str | None = None

    def references(self) -> Sequence[Reference]:
        return [Reference(name, "branch", str(head)) for name, head in sorted(self.heads.items())]

    def commits(self, head: str) -> Iterator[Commit]:
        at = int(head)
        while at >= 0:
            if str(at) == self.broken:
                raise UnreadableMetadata("The log is broken")
            self.asked[str(at)] += 1
            yield Commit(str(at), START + timedelta(minutes=at), self._puts(at))
            at = self.parents[at]

    def contents_at(self, commit: str) -> Iterator[Content]:
        yield from self.state(int(commit)).values()

    def state(self, at: int) -> dict[str, Content]:
        found: dict[str, Content] = {}
        for each in reversed(self.line(at)):
            key, dropped = self.keys[each]
            found.pop(key, None)
            if not dropped:
                found[key] = self._puts(each)[0]
        return found

    def line(self, at: int) -> list[int]:
        found = []
        while at >= 0:
            found.append(at)
            at = self.parents[at]
        return found

    def _puts(self, at: int) -> tuple[Content, ...]:
        key, dropped = self.keys[at]
        return () if dropped else (Content(f"id of {key}", ("ns", key), TABLE, f"{key}-{at}.json", at),)


@dataclass
class Stored:
    """Keeps what a mark stores in memory: the second implementation of the repository's side of it."""

    versions: set[tuple[str, str, int]] = field(default_factory=set)
    heads: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add_references(self, references: Sequence[SetReference]) -> None:
        self.heads |= {each.name: each.head for each in references}

    def add_versions(self, versions: Sequence[LiveVersion]) -> None:
        with self.lock:
            self.versions |= {(each.content_id, each.metadata_location, each.snapshot_id) for each in versions}


def live_by_the_model(log: Log, policies: Policies) -> set[tuple[str, str, int]]:
    live: dict[tuple[str, str, int], None] = {}
    for name, head in log.heads.items():
        cutoff, kept = policies.of(name), []
        for number, at in enumerate(log.line(head)):
            time = START + timedelta(minutes=at)
            old = cutoff.commits is not None and number >= cutoff.commits
            if number and (old or (cutoff.since is not None and time < cutoff.since)):
                break
            kept.append(at)
        for at in kept:
            key, dropped = log.keys[at]
            if not dropped:
                live[(f"id of {key}", f"{key}-{at}.json", at)] = None
        for content in log.state(kept[-1]).values():
            live[(content.content_id, content.metadata_location, content.snapshot_id or 0)] = None
    return set(live)


cutoffs = st.one_of(
    st.just(Cutoff()),
    st.builds(Cutoff, commits=st.integers(0, 12)),
    st.builds(lambda minute: Cutoff(since=START + timedelta(minutes=minute)), st.integers(-2, 32)),
)


@st.composite
def logs(draw: st.DrawFn) -> tuple[Log, Policies]:
    size = draw(st.integers(1, 30))
    parents = [-1] + [draw(st.integers(max(0, at - 4), at - 1)) for at in range(1, size)]
    keys = [(draw(st.sampled_from("abcd")), draw(st.integers(0, 5)) == 0) for _ in range(size)]
    heads = {f"r{n}": draw(st.integers(0, size - 1)) for n in range(draw(st.integers(1, 6)))}
    rules = tuple((name, draw(cutoffs)) for name in heads)
    return Log(parents, keys, heads), Policies(rules)


@pytest.mark.seconds
@settings(max_examples=400)
@given(logs(), st.sampled_from([1, 3]))
def test_a_mark_finds_what_each_reference_alone_would_find(case: tuple[Log, Policies], threads: int) -> None:
    log, policies = case
    stored = Stored()
    marked = mark(log, policies, stored, "s", threads=threads)
    assert stored.versions == live_by_the_model(log, policies)
    assert marked.references == len(log.heads) and stored.heads == {k: str(v) for k, v in log.heads.items()}


def test_commits_that_references_share_are_read_once() -> None:
    shared = 200
    log = Log([*range(-1, shared)], [("a", False)] * (shared + 1), {})
    log.heads = {f"b{n:03}": shared - n for n in range(100)}
    policies = Policies((("b050", Cutoff(commits=150)), ("*", Cutoff(commits=20))))
    marked = mark(log, policies, Stored(), "s", threads=1)
    # The longest walk is 150 commits from b050, which is commit 150: everything from 200 down to 1.
    assert marked.commits == 200
    reads = sum(log.asked.values())
    assert reads <= 2 * shared + 3 * len(log.heads), "a walk that meets another goes on where that one ended"


def test_a_commit_visited_under_a_shorter_cutoff_is_walked_on_under_a_longer_one() -> None:
    log = Log([*range(-1, 9)], [(key, False) for key in "abcdefghij"], {"short": 9, "long": 9})
    stored = Stored()
    mark(log, Policies((("short", Cutoff(commits=2)), ("long", Cutoff(commits=7)))), stored, "s", threads=1)
    assert {name for name, _, _ in stored.versions} == {f"id of {key}" for key in "abcdefghij"}


def test_the_head_stays_live_under_every_policy() -> None:
    log = Log([-1, 0], [("a", False), ("b", False)], {"main": 1})
    for cutoff in (Cutoff(commits=0), Cutoff(since=START + timedelta(days=9999))):
        stored = Stored()
        mark(log, Policies((("*", cutoff),)), stored, "s")
        assert {name for name, _, _ in stored.versions} == {"id of a", "id of b"}


@pytest.mark.parametrize("threads", [1, 4])
def test_a_log_that_cannot_be_read_fails_the_mark(threads: int) -> None:
    log = Log([*range(-1, 30)], [("a", False)] * 31, {f"b{n}": 30 - n for n in range(10)}, broken="3")
    with pytest.raises(UnreadableMetadata):
        mark(log, Policies(), Stored(), "s", threads=threads)


def test_cutoffs_are_commits_durations_instants_or_none() -> None:
    now = datetime(2026, 11, 25, tzinfo=UTC)
    week = Cutoff(since=now - timedelta(days=7))
    assert [cutoff_of(each, now) for each in (5, "5", "5 commits", "7d", timedelta(days=7), "none", None)] == [
        *[Cutoff(commits=5)] * 3,
        week,
        week,
        Cutoff(),
        Cutoff(),
    ]
    assert cutoff_of("2026-11-18T00:00:00Z", now) == week == cutoff_of(now - timedelta(days=7), now)
    for wrong in ("five", "-1", -1, True, ""):
        with pytest.raises(BadInput):
            cutoff_of(wrong, now)
    with pytest.raises(NaiveDatetime):
        cutoff_of("2026-11-18T00:00:00", now)


def test_the_first_pattern_that_matches_wins_and_without_one_all_is_live() -> None:
    policies = policies_of({"release/*": "none", "main": 10, "*": "1 commit"}, START)
    assert [policies.of(name) for name in ("release/1", "main", "Main")] == [
        Cutoff(),
        Cutoff(commits=10),
        Cutoff(commits=1),
    ]
    assert policies_of({"main": 1}, START).of("other") == Cutoff()
