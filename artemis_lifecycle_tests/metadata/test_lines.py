"""Of any two documents of one table, it is known which one goes on from the other, and that neither does where a
catalog was put back and written to."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artemis_lifecycle.metadata.lines import CONTINUES, Line, Relation, relate
from artemis_lifecycle.metadata.types import LogEntry, MetadataLogEntry, Ref, Snapshot, TableMetadata

UUID = "6cec811d-58a5-4557-97f6-6bd68f477bdc"
SAME, AHEAD, BEHIND, DIVERGED = Relation


def _first() -> TableMetadata:
    return TableMetadata(
        metadata_location="s3://w/t/metadata/0.json",
        location="s3://w/t",
        table_uuid=UUID,
        format_version=3,
        last_updated_ms=1_000,
        last_sequence_number=0,
        current_snapshot_id=None,
        snapshots=(),
        refs={},
        snapshot_log=(),
        metadata_log=(),
        statistics=(),
        properties={},
        current_schema_id=0,
        schemas={0: json.dumps({"type": "struct", "fields": [{"id": 1, "name": "a", "type": "int"}]})},
        default_spec_id=0,
        partition_specs={0: "{}"},
        next_row_id=0,
        last_column_id=1,
    )


@dataclass
class History:
    """Documents as they were written; `chain` has, for each, the documents that it goes on from, itself included."""

    documents: list[TableMetadata]
    chain: list[frozenset[int]]
    kept_files: int
    at: int = 0
    clock: int = 1_000
    looks: list[tuple[int, int]] = field(default_factory=list)
    """For each look, the document that it found, and when the table was last found to have left a line."""

    @property
    def now(self) -> TableMetadata:
        return self.documents[self.at]

    def write(self, passed: int, **changes: object) -> None:
        self.clock += passed
        now, number = self.now, len(self.documents)
        log = (*now.metadata_log, MetadataLogEntry(now.last_updated_ms, now.metadata_location))
        where = f"s3://w/t/metadata/{number}.json"
        changes = {"last_updated_ms": self.clock, "metadata_location": where, **changes}
        self.documents.append(replace(now, **{"metadata_log": log[-self.kept_files :], **changes}))
        self.chain.append(self.chain[self.at] | {number})
        self.at = number

    def commit(self, passed: int, on_main: bool) -> None:
        now, snapshot_id, time = self.now, len(self.documents) * 7, self.clock + passed
        number = now.last_sequence_number + 1
        new = Snapshot(snapshot_id, now.current_snapshot_id, number, time, f"s3://w/t/metadata/snap-{snapshot_id}.avro")
        changes: dict[str, object] = {"snapshots": (*now.snapshots, new), "last_sequence_number": number}
        changes["next_row_id"] = (now.next_row_id or 0) + 1
        if on_main:
            changes |= {
                "current_snapshot_id": snapshot_id,
                "snapshot_log": (*now.snapshot_log, LogEntry(time, snapshot_id)),
            }
        else:
            changes |= {"refs": {**now.refs, f"b{snapshot_id}": Ref(f"b{snapshot_id}", snapshot_id, "branch")}}
        self.write(passed, **changes)

    def look(self, passed: int) -> None:
        """As each step does, which knows the document of the look before: a log that reaches back tells."""
        self.clock += passed
        before, left_ms = self.looks[-1] if self.looks else (0, 0)
        log = {int(each.metadata_file.split("/")[-1].removesuffix(".json")) for each in self.now.metadata_log}
        oldest = min(len(self.chain[each]) for each in {*log, self.at})
        if before not in {*log, self.at} and len(self.chain[before]) >= oldest:
            left_ms = self.clock
        self.looks.append((self.at, left_ms))

    def expire(self, passed: int, kept: int) -> None:
        left = {each.snapshot_id for each in self.now.snapshots[-kept:]} | {self.now.current_snapshot_id}
        log = self.now.snapshot_log
        cut = max((place + 1 for place, each in enumerate(log) if each.snapshot_id not in left), default=0)
        snapshots = tuple(each for each in self.now.snapshots if each.snapshot_id in left)
        self.write(passed, snapshots=snapshots, snapshot_log=log[cut:])


@st.composite
def histories(draw: st.DrawFn, kept_files: int = 1_000) -> History:
    history = History([_first()], [frozenset({0})], kept_files)
    kinds = st.sampled_from(["commit", "commit", "branch", "column", "expire", "restore the catalog", "look"])
    for kind in draw(st.lists(kinds, max_size=25)):
        passed = draw(st.integers(1, 200_000))
        if kind in ("commit", "branch"):
            history.commit(passed, kind == "commit")
        elif kind == "column":
            number, known = history.now.last_column_id + 1, history.now.schemas
            added = {len(known): json.dumps({"type": "struct", "fields": [{"id": number, "name": f"c{passed}"}]})}
            history.write(passed, last_column_id=number, schemas={**known, **added})
        elif kind == "expire":
            history.expire(passed, draw(st.integers(1, 3)))
        elif kind == "look":
            history.look(passed)
        else:
            history.at = draw(st.integers(0, len(history.documents) - 1))
    return history


def _numbers(history: History, document: int) -> set[object]:
    """What the document has that got a number."""
    found = history.documents[document]
    logged = {each.snapshot_id for each in found.snapshot_log}
    return {each.snapshot_id for each in found.snapshots} | logged | set(found.schemas.values())


def _truth(history: History, one: int, other: int) -> set[Relation]:
    if one == other:
        return {SAME}
    if other in history.chain[one]:
        return {AHEAD}
    if one in history.chain[other]:
        return {BEHIND}
    mine, theirs = _numbers(history, one), _numbers(history, other)
    # A document that only expired, or changed properties, since the fork does not diverge.
    if mine <= theirs or theirs <= mine:
        return {BEHIND, DIVERGED, AHEAD}
    made = [{each for at in history.chain[place] for each in _numbers(history, at)} for place in (one, other)]
    return {DIVERGED} if not (mine <= made[1] or theirs <= made[0]) else {BEHIND, DIVERGED, AHEAD}


@pytest.mark.seconds
@settings(max_examples=300, deadline=None)
@given(histories())
def test_every_pair_of_documents_is_related_as_it_was_written(history: History) -> None:
    lines = [Line.of(each) for each in history.documents]
    for one in range(len(lines)):
        for other in range(len(lines)):
            assert relate(lines[one], lines[other]) in _truth(history, one, other), (one, other)


@pytest.mark.seconds
@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2).flatmap(lambda kept: histories(kept_files=kept + 1)))
def test_a_cut_metadata_log_never_makes_one_line_two_and_commits_still_show_two(history: History) -> None:
    lines = [Line.of(each) for each in history.documents]
    for one in range(len(lines)):
        for other in range(len(lines)):
            truth, found = _truth(history, one, other), relate(lines[one], lines[other])
            mine, theirs = lines[one].snapshots, lines[other].snapshots
            numbers = {each.sequence_number for number, each in theirs.items() if number not in mine}
            twice = any(each.sequence_number in numbers for number, each in mine.items() if number not in theirs)
            columns = _columns(history, one), _columns(history, other)
            twice = twice or any(columns[0][each] != columns[1][each] for each in columns[0].keys() & columns[1])
            if truth <= {SAME, AHEAD, BEHIND}:
                assert found in truth, (one, other)
            elif twice:
                assert found is DIVERGED, (one, other)


@pytest.mark.seconds
@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2).flatmap(lambda kept: histories(kept_files=kept + 1)))
def test_what_a_look_found_to_be_left_is_not_ahead_once_the_metadata_log_is_cut(history: History) -> None:
    lines = [Line.of(each) for each in history.documents]
    for one, left_ms in history.looks:
        line = replace(lines[one], left_ms=left_ms)
        for other, archived in enumerate(lines):
            truth, found = _truth(history, one, other), relate(line, archived)
            if truth == {DIVERGED} and archived.updated_ms <= left_ms:
                assert found in (DIVERGED, BEHIND), (one, other)
                assert not line.surely_follows(archived), (one, other)
            elif truth <= {SAME, AHEAD, BEHIND} and (archived.updated_ms > left_ms or line.surely_follows(archived)):
                assert found in truth, (one, other)


def _columns(history: History, document: int) -> dict[int, str]:
    fields = (json.loads(text)["fields"] for text in history.documents[document].schemas.values())
    return {each["id"]: each["name"] for some in fields for each in some}


def test_silence_does_not_prove_that_a_line_goes_on_from_another() -> None:
    history = History([_first()], [frozenset({0})], 1)
    history.commit(1_000, True)
    shared = Line.of(history.now)
    history.commit(1_000, True)
    lost, history.at = Line.of(history.now), 1
    for _ in range(4):
        history.commit(1_000, True)
    history.expire(1_000, 1)
    now = Line.of(history.now)
    assert relate(now, lost) is AHEAD and not now.surely_follows(lost)
    left = replace(now, left_ms=lost.updated_ms + 1_000)
    assert relate(left, lost) is relate(left, shared) is DIVERGED
    # With the snapshot that got the other line's last numbers, it has all of that line.
    (snapshot,) = (each for each in shared.snapshots.values())
    kept = replace(left, snapshots={**left.snapshots, snapshot.snapshot_id: snapshot})
    assert relate(kept, shared) is AHEAD and relate(kept, lost) is DIVERGED
    assert relate(replace(now, left_ms=lost.updated_ms - 1), lost) is AHEAD


def test_a_table_that_was_put_back_and_only_expired_is_still_behind() -> None:
    history = History([_first()], [frozenset({0})], 100)
    for _ in range(3):
        history.commit(1_000, True)
    lost = Line.of(history.now)
    history.at = 2
    history.expire(1_000, 1)
    history.write(1_000, properties={"owner": "x"})
    assert relate(Line.of(history.now), lost) is BEHIND
    history.commit(1_000, True)
    assert relate(Line.of(history.now), lost) is DIVERGED


def test_a_line_that_a_restore_raised_above_the_lost_one_is_ahead_of_it() -> None:
    history = History([_first()], [frozenset({0})], 100)
    for _ in range(3):
        history.commit(1_000, True)
    lost = Line.of(history.now)
    history.at = 1
    assert relate(Line.of(history.now), lost) is BEHIND and relate(lost, Line.of(history.now)) is AHEAD
    history.write(1_000, properties={CONTINUES: lost.file}, last_sequence_number=3)
    history.commit(1_000, True)
    assert relate(Line.of(history.now), lost) is AHEAD
    assert relate(replace(lost, table_uuid="another"), lost) is DIVERGED


def test_a_snapshot_that_was_put_back_can_be_taken_for_the_same_one() -> None:
    history = History([_first()], [frozenset({0})], 100)
    history.commit(1_000, True)
    one = Line.of(history.now)
    ((number, snapshot),) = one.snapshots.items()
    other = replace(one, file="x.json", snapshots={number: replace(snapshot, sequence_number=9, timestamp_ms=9_000)})
    assert relate(one, other) is DIVERGED

    def by_list(mine: Snapshot, theirs: Snapshot) -> bool:
        return mine.manifest_list == theirs.manifest_list

    assert relate(
        one, replace(other, marks=replace(one.marks, sequence_number=9), files={str(one.file): 0}), by_list
    ) is (BEHIND)
