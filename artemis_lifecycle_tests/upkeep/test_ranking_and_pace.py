"""Which partitions go first, and how long the next one waits: pure rules."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.config.policies import Compaction
from artemis_lifecycle.errors import CommitConflict
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.upkeep.compaction import SLOWEST, CompactionPace, RankedPartition, batches, ranked
from artemis_lifecycle_tests.simulated_time import SimulatedTime

COLUMNS = ("files", "bytes", "rewritable", "rewritable_bytes", "rewritten", "delete_files", "delete_bytes")


def table(*rows: dict[str, object]) -> pa.Table:
    return pa.Table.from_pylist([dict.fromkeys(COLUMNS, 0) | {"partition": str(n)} | row for n, row in enumerate(rows)])


def seconds(files: int, size_in_bytes: int) -> float:
    return files * 0.1 + size_in_bytes / 85_000_000


def test_what_saves_most_per_byte_goes_first_and_not_what_has_most_files() -> None:
    many_large = {"files": 100, "bytes": 10**10, "rewritable": 100, "rewritable_bytes": 10**10, "rewritten": 20}
    few_tiny = {"files": 10, "bytes": 10**4, "rewritable": 10, "rewritable_bytes": 10**4, "rewritten": 1}
    only_deletes = {"files": 4, "bytes": 10**7, "delete_files": 40, "delete_bytes": 10**5}
    few_deletes = {"files": 100, "bytes": 10**9, "delete_files": 1, "delete_bytes": 10**3}
    found = ranked(table(many_large, few_tiny, only_deletes, few_deletes), Compaction(), seconds)
    assert [each.partition for each in found] == ["1", "2", "0"]
    assert [each.for_deletes for each in found] == [False, True, False]
    assert found[1].files == 4 and found[1].size_in_bytes == 10**7 + 10**5
    assert len(ranked(table(few_deletes), Compaction(min_delete_file_ratio=0.01), seconds)) == 1
    # Equality deletes of an unpartitioned spec stand beside no data file of their own partition.
    assert len(ranked(table({"delete_files": 1}), Compaction(), seconds)) == 1


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 150))
def test_batches_keep_the_order_and_all_partitions(sizes: list[int], batch_bytes: int) -> None:
    given_ones = [RankedPartition(str(n), 1.0, size, 5, False) for n, size in enumerate(sizes)]
    found = list(batches(given_ones, batch_bytes))
    assert [each for batch in found for each in batch] == given_ones
    for batch in found:
        assert len(batch) == 1 or sum(each.size_in_bytes for each in batch) <= batch_bytes
    for one, other in pairwise(found):
        assert sum(each.size_in_bytes for each in one) + other[0].size_in_bytes > batch_bytes


BATCHES = st.lists(st.tuples(st.floats(2.0, 500.0), st.floats(0.01, 1.0)), min_size=2, max_size=12)


@pytest.mark.slow
@given(BATCHES, st.floats(0.05, 1.0), st.booleans())
def test_the_average_never_exceeds_the_share_of_what_the_store_can_do(
    work: list[tuple[float, float]], share: float, configured: bool
) -> None:
    """Each batch moves so many seconds' worth of bytes, slowed by other load to a fraction of what the store can do."""
    store, time = 100 * SLOWEST, SimulatedTime()
    pace = CompactionPace(share, store if configured else None, clock=time.clock, sleep=time.sleep)
    moved = 0
    for full_seconds, left_by_others in work:
        pace.wait()
        assert moved <= share * store * time.now * 1.0001 + 1
        size = int(full_seconds * store)
        began = time.now
        time.now += full_seconds / left_by_others
        pace.moved(size, time.now - began)
        moved += size
    pace.wait()
    assert moved <= share * store * time.now * 1.0001 + 1


def test_a_batch_too_small_to_measure_hardly_waits() -> None:
    time = SimulatedTime()
    pace = CompactionPace(0.3, clock=time.clock, sleep=time.sleep)
    pace.moved(10_000, 3.0)
    pace.wait()
    assert time.now == 0.0


def test_a_wait_ends_when_the_run_is_to_stop() -> None:
    """The store's debt may last hours; the quiet window must not wait for it."""
    time = SimulatedTime()
    pace = CompactionPace(0.3, float(SLOWEST), clock=time.clock, sleep=time.sleep)
    pace.moved(10_000 * SLOWEST, 1.0)
    assert pace.wait(lambda: "it is late" if time.now >= 5.0 else None) == "it is late"
    assert time.now == 5.0
    assert pace.wait() is None and time.now > 30_000.0


def test_a_batch_that_fails_counts_as_all_that_the_store_can_do() -> None:
    time = SimulatedTime()
    pace = CompactionPace(0.25, clock=time.clock, sleep=time.sleep)

    def lose() -> None:
        with pace.batch():
            time.now += 10.0
            raise CommitConflict("another writer was first")

    with pytest.raises(CommitConflict):
        lose()
    pace.wait()
    assert time.now == 40.0


@pytest.mark.seconds
def test_machines_wait_for_each_other(postgres_uri: str) -> None:
    operations = Operations.open(postgres_uri)
    try:
        asked = []
        one = CompactionPace(0.3, 100.0 * SLOWEST, operations.engine)
        other = CompactionPace(0.3, engine=operations.engine, check=lambda: asked.append(1), sleep=lambda _: _stop())
        other.wait()
        one.moved(300 * SLOWEST, 2.0)
        try:
            other.wait()
        except InterruptedError:
            asked.append(2)
        # Asked whether to go on, before it sleeps: ten seconds less the two that the batch took.
        assert asked == [1, 1, 2]
        assert 6.0 < other._left() <= 8.0
    finally:
        operations.close()


def _stop() -> None:
    raise InterruptedError
