"""The worked example of Paimon's "Manage Snapshots" (at least 2, 1 hour, at most 5), end to end on a real table whose
commits are moved in time: after each commit an expiration, by Paimon on one copy and by this project on another."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.paimon import ours
from artemis_lifecycle_tests.paimon.bundle import Table, create

OPTIONS = {
    "bucket": "1",
    "snapshot.num-retained.min": "2",
    "snapshot.num-retained.max": "5",
    "snapshot.time-retained": "1 h",
}
COMMITS = ("10:00", "10:20", "10:40", "11:00", "11:20", "11:30", "11:35", "11:36")
SURVIVORS = (
    [1],
    [1, 2],
    [1, 2, 3],
    [1, 2, 3, 4],
    [2, 3, 4, 5],
    [3, 4, 5, 6],
    [3, 4, 5, 6, 7],
    [4, 5, 6, 7, 8],
)
"""All snapshots after the expiration check that follows each commit, as the page has them."""
A_MOMENT = timedelta(seconds=30)
"""By how much the clock is behind the page's: a commit just one hour old is still young, however slow the machine."""


def place_commits(table: Table, upto: int, now: datetime) -> None:
    """Move the table's commits so that `now` is a moment before the page's last one of them."""
    newest = _clock(COMMITS[upto])
    for number in table.snapshots():
        table.place(number, now + A_MOMENT - (newest - _clock(COMMITS[number - 1])))


def test_paimon_expires_as_its_page_says(calls: Any, warehouse: Path) -> None:
    table = create(calls, warehouse, keyed=True, options=OPTIONS)
    for row, survivors in enumerate(SURVIVORS):
        table.write([(row, "a", f"v{row}")])
        place_commits(table, row, datetime.now(UTC))
        table.expire()
        assert table.snapshots() == survivors
    assert table.read() == [(row, "a", f"v{row}") for row in range(8)]
    assert table.unreached() == set()


def test_each_row_of_the_page_is_what_paimon_and_we_leave(
    calls: Any, make_config: MakeConfig, spark: SparkSession, tmp_path: Path
) -> None:
    table = create(calls, tmp_path / "lake", keyed=True, options=OPTIONS)
    with ours.opened(ours.configured(make_config, table.warehouse), spark) as lifecycle:
        for row, survivors in enumerate(SURVIVORS):
            table.write([(row, "a", f"v{row}")], overwrite=True)
            place_commits(table, row, datetime.now(UTC))
            theirs = table.copy(tmp_path / f"row {row}")

            theirs.expire()
            ours.expire(lifecycle, table)

            assert table.snapshots() == theirs.snapshots() == survivors
            assert table.listing() == theirs.listing()
    assert [table.read(scan_snapshot_id=each) for each in SURVIVORS[-1]] == [[(n, "a", f"v{n}")] for n in range(3, 8)]


def _clock(text: str) -> datetime:
    hour, minute = map(int, text.split(":"))
    return datetime(2023, 7, 6, hour, minute, tzinfo=UTC)
