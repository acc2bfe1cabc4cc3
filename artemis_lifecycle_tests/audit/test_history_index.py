"""A compacted history answers for every instant of the past as the whole log did."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.expiration import history_index
from artemis_lifecycle.expiration.history_index import HistoryIndex, Log, extend_history, read_history
from artemis_lifecycle.metadata.types import Snapshot, SnapshotSummary
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.deaths import Killed
from artemis_lifecycle_tests.storage import s3_server

STORES = Stores()


def _snapshot(number: int, writer: str, operation: str, schema: int) -> tuple[Snapshot, str]:
    summary = SnapshotSummary(operation, {"writer.id": writer, "trigger.type": "schedule"})
    return Snapshot(number, None, number, 0, None, schema_id=schema, summary=summary), f"metadata-{number}"


_snapshots = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["append", "replace"]), st.integers(0, 1)), min_size=1, max_size=8
)
# A rollback makes an earlier snapshot current again; clocks give two commits one time.
_log = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), min_size=1, max_size=40)
_rounds = st.lists(st.tuples(st.integers(0, 30), st.none() | st.integers(0, 30)), min_size=1, max_size=4)


def _whole(log: Log, instant: int) -> tuple[int, int] | None:
    """The newest entry up to the instant; of several with one time, the first."""
    past = [entry for entry in log if entry[0] <= instant]
    newest = max((since for since, _ in past), default=None)
    return next((entry for entry in past if entry[0] == newest), None)


@pytest.mark.seconds
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(_log, _snapshots, _rounds, st.integers(1, 3))
def test_the_answers_before_and_after_are_equal(
    tmp_path_factory: pytest.TempPathFactory,
    log: list[tuple[int, int]],
    described: list[tuple[str, str, int]],
    rounds: list[tuple[int, int | None]],
    rows: int,
) -> None:
    folder = f"file://{tmp_path_factory.mktemp('history')}"
    snapshots = {number: _snapshot(number, *what) for number, what in enumerate(described, 1)}
    log.sort(key=lambda entry: entry[0])
    index: HistoryIndex | None = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_index, "_DETAIL_ROWS", rows)
        for until, cut in sorted(rounds, key=lambda each: each[0]):
            index = extend_history(STORES, folder, log, lambda: log, snapshots, until_ms=until, cut_ms=cut)
    assert index is not None
    stored = read_history(STORES, folder)
    assert stored == index
    for instant in range(-1, index.until_ms + 1):
        expected, found = _whole(log, instant), index.at(STORES, instant)
        assert (None if found is None else (found.since_ms, found.snapshot_id)) == expected
        if found is not None and found.snapshot_id in snapshots:
            snapshot, _ = snapshots[found.snapshot_id]
            assert (found.writer, found.operation, found.schema_id) == (
                snapshot.summary.get("writer.id"),
                snapshot.summary.operation,
                snapshot.schema_id,
            )
    assert index.entries == len({since for since, _ in log if since <= index.until_ms})


def test_a_run_of_one_writer_becomes_one_range(tmp_path: Path) -> None:
    log = [(number * 1000, number) for number in range(1, 100_001)]
    writers = {number: _snapshot(number, "ingest" if number % 1000 else "compaction", "append", 0) for _, number in log}
    until = 100_000_000
    index = extend_history(STORES, f"file://{tmp_path}", [], lambda: log, writers, until_ms=until, cut_ms=until)
    assert index.entries == 100_000
    assert index.ranges.num_rows == 200
    assert (tmp_path / "ranges.parquet").stat().st_size < 20_000
    found = index.at(STORES, 54_321_999)
    assert found is not None and found.snapshot_id == 54_321 and found.writer == "ingest"


def _extended(folder: str, log: Log, until: int) -> HistoryIndex:
    return extend_history(STORES, folder, log, lambda: log, {}, until_ms=until, cut_ms=until)


@pytest.mark.seconds
def test_a_time_that_no_tier_has_is_unknown_and_not_the_snapshot_before_it(tmp_path: Path) -> None:
    folder = f"file://{tmp_path}"
    _extended(folder, [(10, 1), (20, 2)], 25)
    index = _extended(folder, [(40, 4)], 50)
    answers = [index.at(STORES, at) for at in (25, 26, 39, 40)]
    assert [None if each is None else each.snapshot_id for each in answers] == [2, None, None, 4]


def test_another_past_begins_anew_and_the_former_index_is_kept(tmp_path: Path) -> None:
    folder, minute = f"file://{tmp_path}", 60_000
    _extended(folder, [(10 * minute, 1), (20 * minute, 2)], 25 * minute)
    former = (tmp_path / "ranges.parquet").read_bytes()
    index = _extended(folder, [(10 * minute, 1), (21 * minute, 3)], 30 * minute)
    found = index.at(STORES, 22 * minute)
    assert found is not None and found.snapshot_id == 3 and index.entries == 2
    (aside,) = (path for path in tmp_path.glob("ranges-*.parquet"))
    assert aside.read_bytes() == former


def test_a_history_that_only_grows_is_not_rewritten_without_something_new(tmp_path: Path) -> None:
    _extended(f"file://{tmp_path}", [(10, 1)], 25)
    before = {path: path.stat().st_ino for path in tmp_path.iterdir()}
    _extended(f"file://{tmp_path}", [(10, 1)], 25)
    assert {path: path.stat().st_ino for path in tmp_path.iterdir()} == before


def test_damage_is_an_error_and_no_answer(tmp_path: Path) -> None:
    folder = f"file://{tmp_path}"
    index = _extended(folder, [(10, 1), (20, 2)], 25)
    (detail,) = tmp_path.glob("entries-*")
    detail.write_bytes(detail.read_bytes()[:-1] + b"x")
    with pytest.raises(StorageError, match="checksum"):
        index.at(STORES, 15)
    (tmp_path / "ranges.parquet").write_bytes(b"PAR1")
    with pytest.raises(StorageError, match="damaged"):
        read_history(STORES, folder)


@pytest.mark.slow
def test_a_year_of_nights_leaves_two_detail_files_and_earlier_readers_their_own(tmp_path: Path) -> None:
    folder, log = f"file://{tmp_path}", [(night, night) for night in range(1, 366)]
    for night, _ in log:
        cut = night if night % 30 == 0 else None
        extend_history(STORES, folder, log[:night], lambda: log, {}, until_ms=night, cut_ms=cut)
        if night == 359:
            reader = read_history(STORES, folder)
    index = extend_history(STORES, folder, log, lambda: log, {}, until_ms=365, cut_ms=365)
    assert [detail.rows for detail in index._details] == [365]
    # The details that the last merge replaced are still there for whoever read the index before it.
    assert reader is not None and reader.at(STORES, 355) == index.at(STORES, 355)
    assert len(list(tmp_path.glob("entries-*"))) < 20


def test_a_worker_that_lost_its_lease_does_not_replace_the_index(tmp_path: Path) -> None:
    folder = f"file://{tmp_path}"
    first = extend_history(STORES, folder, [], lambda: [(1, 1)], {}, until_ms=1, cut_ms=None)

    def lost() -> None:
        raise StorageError("the lease is lost")

    with pytest.raises(StorageError, match="lease is lost"):
        extend_history(STORES, folder, [(1, 1), (2, 2)], lambda: [], {}, until_ms=2, cut_ms=None, confirm=lost)
    assert read_history(STORES, folder) == first


def test_on_an_object_store_a_death_before_the_index_leaves_the_earlier_answers() -> None:
    with s3_server.running_anywhere() as server:
        stores, folder = server.stores(), f"s3://{server.bucket()}/history/uuid"
        log = [(number, number) for number in range(1, 9)]
        for until, cut in ((3, None), (5, 5)):
            first = extend_history(stores, folder, log, lambda: log, {}, until_ms=until, cut_ms=cut)

        def die() -> None:
            raise Killed("before the index")

        with pytest.raises(Killed):
            extend_history(stores, folder, log, lambda: log, {}, until_ms=8, cut_ms=8, confirm=die)
        assert read_history(stores, folder) == first
        # The worker after it adds the same entries again; what the dead one wrote is not referenced.
        again = extend_history(stores, folder, log, lambda: log, {}, until_ms=8, cut_ms=8)
        assert [found.snapshot_id for at in range(1, 9) if (found := again.at(stores, at))] == list(range(1, 9))
