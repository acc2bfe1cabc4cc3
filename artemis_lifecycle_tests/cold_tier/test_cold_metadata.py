"""The cold metadata file: the live table's past, whole, and nothing that an engine could misread."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artemis_lifecycle.cold_tier.cold_metadata import (
    COMPLETE_UNTIL,
    TAGS,
    UNKNOWN_SNAPSHOT,
    Diverged,
    at,
    build_metadata,
    continued,
    history_of,
    last,
    merge_logs,
    metadata_path,
    snapshot_at,
    to_bytes,
    without_moved_refs,
    written,
)
from artemis_lifecycle.cold_tier.evolution import Ids, archive_ids, with_current, with_lists
from artemis_lifecycle.cold_tier.paths import ColdIdentity, PathMapping, place
from artemis_lifecycle.metadata.table_metadata import parse_table_metadata
from artemis_lifecycle.storage.location import LocationRules

IDENTITY: ColdIdentity = place(
    table="ns.t",
    table_uuid="0a1b2c3d-0000-4000-8000-000000000000",
    live_location="s3://live/ns/t",
    live_warehouse="s3://live",
    cold_warehouse="s3://cold",
    rules=LocationRules(),
    is_taken=lambda _: False,
    cold_locations=(),
)
MAPPED = PathMapping(IDENTITY)


def log(*entries: tuple[int, int]) -> list[dict[str, int]]:
    return [{"timestamp-ms": at, "snapshot-id": snapshot} for at, snapshot in entries]


def live(snapshots: list[int], history: list[tuple[int, int]] | None = None, **more: Any) -> dict[str, Any]:
    """Snapshot n was committed at n * 10 under sequence number n."""
    return {
        "format-version": 2,
        "table-uuid": IDENTITY.table_uuid,
        "location": "s3://live/ns/t",
        "last-sequence-number": max(snapshots),
        "last-updated-ms": max(snapshots) * 10,
        "last-column-id": 3,
        "current-schema-id": 0,
        "schemas": [{"schema-id": 0, "type": "struct", "fields": []}],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {"write.data.path": "s3://live/elsewhere", "user.path": "s3://live/x"},
        "current-snapshot-id": max(snapshots),
        "refs": {"main": {"snapshot-id": max(snapshots), "type": "branch"}},
        "snapshots": [
            {
                "snapshot-id": n,
                "sequence-number": n,
                "timestamp-ms": n * 10,
                "manifest-list": f"s3://live/ns/t/l{n}",
                "of-the-future": "s3://live/kept",
            }
            for n in snapshots
        ],
        "snapshot-log": log(*(history or [(n * 10, n) for n in snapshots])),
        "metadata-log": [{"timestamp-ms": 1, "metadata-file": "s3://live/ns/t/old.json"}],
        "of-the-future": {"path": "s3://live/kept"},
        **more,
    }


def test_paths_are_mapped_where_they_are_paths_and_nowhere_else() -> None:
    statistics = [{"snapshot-id": n, "statistics-path": f"s3://live/ns/t/s{n}", "blobs": ["?"]} for n in (1, 3)]
    new = build_metadata(
        live([1, 2, 3], statistics=statistics, **{"partition-statistics": statistics}),
        None,
        None,
        {1, 2},
        IDENTITY,
        MAPPED,
    )
    assert new["location"] == "s3://cold/ns/t"
    assert [s["manifest-list"] for s in new["snapshots"]] == ["s3://cold/ns/t/l1", "s3://cold/ns/t/l2"]
    assert {s["of-the-future"] for s in new["snapshots"]} == {"s3://live/kept"}
    assert new["of-the-future"] == {"path": "s3://live/kept"}
    assert new["metadata-log"] == []
    for key in ("statistics", "partition-statistics"):
        assert new[key] == [{"snapshot-id": 1, "statistics-path": "s3://cold/ns/t/s1", "blobs": ["?"]}]
    assert new["properties"] == {
        "user.path": "s3://live/x",
        "gc.enabled": "false",
        "artemis.archive-of": "ns.t",
        COMPLETE_UNTIL: "30",
    }
    assert new["refs"] == {"main": {"snapshot-id": 2, "type": "branch"}}
    assert new["current-snapshot-id"] == 2


def test_refs_of_archived_snapshots_become_tags_and_stay() -> None:
    refs = {
        "main": {"snapshot-id": 3, "type": "branch"},
        "incident": {"snapshot-id": 1, "type": "tag", "max-ref-age-ms": 5},
        "audit": {"snapshot-id": 2, "type": "branch"},
        "later": {"snapshot-id": 3, "type": "tag"},
    }
    named = {name: ref["snapshot-id"] for name, ref in refs.items() if name != "main"}
    tags = continued((), [(30, named)])
    first = build_metadata(live([1, 2, 3], refs=refs), None, None, {1, 2}, IDENTITY, MAPPED, tags=tags)
    assert first["refs"] == {
        "main": {"snapshot-id": 2, "type": "branch"},
        "incident": {"snapshot-id": 1, "type": "tag"},
        "audit": {"snapshot-id": 2, "type": "tag"},
    }
    assert history_of(first["properties"]) == tags
    # `later` is gone when its snapshot comes, and `incident` has moved to one that is not there: its name says neither.
    tags = continued(tags, [(35, {**named, "incident": 4}), (40, {})])
    second = build_metadata(live([3, 4]), first, "s3://cold/a.json", {3}, IDENTITY, MAPPED, tags=tags)
    assert second["refs"] == {
        "main": {"snapshot-id": 3, "type": "branch"},
        "audit": {"snapshot-id": 2, "type": "tag"},
        "later": {"snapshot-id": 3, "type": "tag"},
    }


def test_a_closed_table_keeps_no_tag_that_means_another_snapshot_by_now() -> None:
    tags = continued((), [(10, {"stays": 1, "moves": 1})])
    closed = build_metadata(live([1, 2, 3]), None, None, {1, 2}, IDENTITY, MAPPED, tags=tags)
    assert without_moved_refs(closed, "s3://cold/a.json", tags) is None
    later = without_moved_refs(closed, "s3://cold/a.json", continued(tags, [(20, {"moves": 3})]))
    assert later is not None and later["refs"] == {name: closed["refs"][name] for name in ("stays", "main")}
    assert later["metadata-log"][-1]["metadata-file"] == "s3://cold/a.json"


steps = st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), max_size=3), max_size=8)


@given(steps, st.integers(0, 8))
def test_a_history_of_tags_answers_as_the_refs_did(states: list[dict[str, int]], cut: int) -> None:
    timed = [(number * 10, refs) for number, refs in enumerate(states)]
    # Continued at any place it is the same.
    history = continued(continued((), timed[:cut]), timed[cut:])
    assert history == continued((), timed) == history_of({TAGS: written(history)})
    for name in "abc":
        held = [refs[name] for refs in states if name in refs]
        assert last(history, name) == (held[-1] if held else None)
        for instant in range(-1, 10 * len(states)):
            assert at(history, name, instant) == (states[instant // 10].get(name) if instant >= 0 else None)


def test_schemas_that_the_live_table_dropped_stay_in_cold() -> None:
    first = build_metadata(live([1, 2]), None, None, {1}, IDENTITY, MAPPED)
    schemas = [{"schema-id": 5, "type": "struct", "fields": [{"id": 1}]}]
    after = live([2, 3], schemas=schemas, **{"current-schema-id": 5, "last-column-id": 2})
    second = build_metadata(after, first, "s3://cold/a.json", {2}, IDENTITY, MAPPED)
    assert [schema["schema-id"] for schema in second["schemas"]] == [0, 5]
    assert second["current-schema-id"] == 5
    assert second["last-column-id"] == 3
    assert second["metadata-log"] == [{"timestamp-ms": first["last-updated-ms"], "metadata-file": "s3://cold/a.json"}]
    assert second["last-updated-ms"] > first["last-updated-ms"]


def test_of_two_meanings_of_one_id_both_stay() -> None:
    first = build_metadata(live([1, 2]), None, None, {1}, IDENTITY, MAPPED)
    same = [{"schema-id": 0, "type": "struct", "fields": [], "identifier-field-ids": [], "doc": None}]
    assert archive_ids(live([2, 3], schemas=same), first) == Ids()
    other = [{"schema-id": 0, "type": "struct", "fields": [{"id": 1, "name": "x", "type": "long"}]}]
    base = live([2, 3], schemas=other)
    base["snapshots"][0]["schema-id"] = 0
    ids = archive_ids(base, first)
    second = build_metadata(base, first, "s3://cold/a.json", {2}, IDENTITY, PathMapping(IDENTITY, ids))
    (number,) = ids.schemas.values()
    assert number > 0 and second["schemas"] == [*first["schemas"], {**other[0], "schema-id": number}]
    assert second["snapshots"][-1]["schema-id"] == second["current-schema-id"] == number
    # At the next handoff it is the same one.
    assert archive_ids(base, second) == ids


def test_version_1_without_lists_has_a_schema_and_a_spec_like_any_other() -> None:
    old = live([1, 2], **{"format-version": 1, "schema": {"type": "struct", "fields": []}, "partition-spec": []})
    for key in ("schemas", "partition-specs", "current-schema-id", "default-spec-id", "sort-orders"):
        del old[key]
    made = with_current(build_metadata(with_lists(old), None, None, {1}, IDENTITY, MAPPED), lambda snapshot: [0])
    assert (made["current-schema-id"], made["default-spec-id"]) == (0, 0)
    assert made["schemas"] == [{**old["schema"], "schema-id": 0}] and made["schema"]["fields"] == []
    assert parse_table_metadata(to_bytes(made), "s3://cold/a.json").default_spec_id == 0


def test_a_snapshot_that_names_no_schema_keeps_the_one_it_was_read_by() -> None:
    first = build_metadata(live([1, 2]), None, None, {1}, IDENTITY, MAPPED)
    later = live([2, 3], schemas=[{"schema-id": 4, "type": "struct", "fields": []}], **{"current-schema-id": 4})
    second = build_metadata(later, first, "s3://cold/a.json", {2}, IDENTITY, MAPPED)
    assert [snapshot["schema-id"] for snapshot in second["snapshots"]] == [0, 4]


def test_partition_fields_of_old_writers_get_the_ids_that_iceberg_gives_them() -> None:
    fields = [{"name": name, "transform": "identity", "source-id": number} for number, name in enumerate("ab", start=1)]
    old = {"schema": {"type": "struct", "fields": []}, "partition-spec": fields}
    made = with_lists(old)
    assert [each["field-id"] for each in made["partition-specs"][0]["fields"]] == [1000, 1001]
    assert made["last-partition-id"] == 1001 and with_lists(made) == made


def test_a_cut_live_log_continues_the_cold_one() -> None:
    whole = log((10, 1), (20, 2), (30, 3))
    assert merge_logs(whole, log((30, 3), (40, 4)), 35) == log((10, 1), (20, 2), (30, 3), (40, 4))
    assert merge_logs(whole, whole, 35) == whole
    assert merge_logs(whole, log((20, 2)), 35) == whole
    assert merge_logs([], whole, 0) == whole
    assert merge_logs(whole, [], 35) == whole


def test_a_rollback_is_kept() -> None:
    rolled_back = log((10, 1), (20, 2), (30, 1), (40, 3))
    assert merge_logs(log((10, 1), (20, 2)), rolled_back, 25) == rolled_back
    assert merge_logs(rolled_back, log((30, 1), (40, 3), (50, 4)), 45) == [*rolled_back, *log((50, 4))]


def test_an_unrecorded_period_is_reported_as_unknown() -> None:
    m = 60_000
    merged = merge_logs(log((10 * m, 1), (20 * m, 2)), log((50 * m, 5)), 25 * m)
    pairs = [(entry["timestamp-ms"], entry["snapshot-id"]) for entry in merged]
    answers = [snapshot_at(pairs, at) for at in (9 * m, 10 * m, 19 * m, 20 * m, 25 * m, 50 * m - 1, 50 * m)]
    assert answers == [None, 1, 1, 2, UNKNOWN_SNAPSHOT, UNKNOWN_SNAPSHOT, 5]


def test_two_histories_that_went_apart_are_not_one() -> None:
    m = 60_000
    shared = log((10 * m, 1), (20 * m, 2))
    for newer in (
        [*shared, *log((30 * m, 4), (90 * m, 5))],
        log((20 * m, 2), (25 * m, 4), (40 * m, 3), (90 * m, 5)),
        log((40 * m, 3), (20 * m, 2)),
        log((35 * m, 7), (90 * m, 8)),
    ):
        with pytest.raises(Diverged):
            merge_logs([*shared, *log((40 * m, 3))], newer, 45 * m)


def test_a_log_with_holes_is_the_same_history() -> None:
    """pyiceberg takes expired snapshots out of the middle of a log."""
    m = 60_000
    whole = log((10 * m, 1), (20 * m, 2), (30 * m, 3), (40 * m, 4))
    assert merge_logs(whole, log((20 * m, 2), (40 * m, 4), (50 * m, 5)), 45 * m) == [*whole, *log((50 * m, 5))]
    assert merge_logs(whole, log((20 * m, 2), (50 * m, 5)), 45 * m) == [*whole, *log((50 * m, 5))]


Steps = list[tuple[str, int, int, int]]


def steps_of(draw: st.DrawFn) -> Steps:
    wrong, passing = st.integers(-30_000, 29_000), st.integers(0, 100_000)
    commit = st.tuples(st.just("commit"), wrong, passing, st.integers(1, 6))
    cut = st.tuples(st.sampled_from(["hand off", "cut by another"]), st.integers(0, 5), st.just(0), st.just(0))
    return draw(st.lists(st.one_of(commit, commit, cut), max_size=25))


@pytest.mark.slow
@settings(max_examples=1_000)
@given(st.composite(steps_of)())
def test_finding_9_no_instant_is_answered_wrongly_whatever_clocks_and_other_tools_do(steps: Steps) -> None:
    """A table commits and rolls back by clocks that are wrong by half a minute, its log is cut by us and by others, and
    handoffs merge. Every instant is answered by the snapshot that was current then, or refused; while each cut log
    begins in what a handoff had seen, none is refused."""
    time, truth = 1_000_000, [(1_000_000, 1)]
    cut, cold, known_until, seen, lost = 0, log(), 0, 0, False
    logs: list[list[tuple[int, int]]] = []
    for kind, value, passed, snapshot in [*steps, ("hand off", 0, 0, 0)]:
        if kind == "commit":
            time += passed
            begins = time + value
            while begins in {known for known, _ in truth}:
                begins += 1
            truth.append((begins, snapshot))
            continue
        if kind == "hand off":
            lost |= 0 < seen <= cut or (not seen and cut > 0)
            cold = merge_logs(cold, log(*truth[cut:]), known_until)
            logs.append(truth[cut:])
            known_until, seen = truth[-1][0], len(truth)
        # The last entry always stays.
        cut = max(cut, len(truth) - 1 - value)
    merged = [_pair(entry) for entry in cold]
    for instant in sorted({begins + by for begins, _ in truth for by in (-1, 0, 1, 30_000)}):
        answer = snapshot_at(merged, instant)
        if not lost or answer not in (None, UNKNOWN_SNAPSHOT):
            # A log that another tool has cut may answer otherwise than the whole one within a minute of the cut.
            by_live = {snapshot_at(each, instant) for each in logs} if lost else set()
            assert answer in {snapshot_at(truth, instant), *by_live}, instant


def _pair(entry: dict[str, int]) -> tuple[int, int]:
    return entry["timestamp-ms"], entry["snapshot-id"]


def test_the_metadata_file_of_one_plan_on_one_base_has_one_name() -> None:
    first = metadata_path(IDENTITY, "plan", None)
    assert first == metadata_path(IDENTITY, "plan", None)
    assert first.startswith("s3://cold/ns/t/metadata/00000-")
    second = metadata_path(IDENTITY, "plan", first)
    assert second.startswith("s3://cold/ns/t/metadata/00001-")
    assert len({first, second, metadata_path(IDENTITY, "other", first)}) == 3
